"""A rehearsal: a model at its full size with random weights on one card, and what its steps take.

Nothing is downloaded: weights are made on the card in the recipe's shapes and bit rates. Steps are captured
in CUDA graphs as in service and timed by events around replays; every replay gets other tokens and so meets
other experts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.api.rehearsal_plan import (
    LONGEST_CHUNK,
    PAGE_TOKENS,
    SLOTS,
    RehearsalPlan,
    Told,
    model_name,
    nobody,
)
from tandem.kernels.kda.cuda import DeviceSlots
from tandem.kernels.nvrtc import compile_together, noting_launches
from tandem.models.glm5_next.cuda_prefill import ChunkInput, PrefillProgram
from tandem.models.glm5_next.cuda_rows import RowsInput
from tandem.models.glm5_next.cuda_stage import (
    CacheRoom,
    DeviceStage,
    RowsProgram,
    load_stage,
    rows_scratch,
)
from tandem.models.glm5_next.cuda_weights import DeviceReader
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.planner.geometry import BitWidths

_WARM_UP, _REPEATS, _PREFILL_REPEATS = 3, 15, 3


@dataclass(frozen=True, slots=True)
class RowsCase:
    """One kind of step: so many sequences, so many rows of each, at a position."""

    name: str
    sequences: int
    rows: int
    position: int


STEPS = (
    RowsCase("decode_1_8k_ms", 1, 1, 8191),
    RowsCase("decode_4x4k_ms", 4, 1, 4095),
    RowsCase("decode_8x4k_ms", 8, 1, 4095),
    RowsCase("verify_2_8k_ms", 1, 2, 8190),
    RowsCase("verify_4_8k_ms", 1, 4, 8188),
    RowsCase("verify_8_8k_ms", 1, 8, 8184),
    RowsCase("decode_1_64k_ms", 1, 1, 65535),
    RowsCase("decode_1_262k_ms", 1, 1, 262143),
    RowsCase("decode_1_1m_ms", 1, 1, 1048575),
)


@dataclass(slots=True)
class Rehearsal:
    """A stage with all layers of a model, and the memory for its steps."""

    stage: DeviceStage
    cache_dir: Path | None
    load_seconds: float

    @classmethod
    def build(
        cls,
        spec: Glm5NextSpec,
        bits: BitWidths,
        room: CacheRoom,
        device: torch.device,
        cache_dir: Path | None,
    ) -> Rehearsal:
        """Make weights and caches. Caches hold noise, so that attention has something to choose from."""
        begin = time.perf_counter()
        reader = DeviceReader(RandomCheckpoint(spec, bits, device), device)
        stage = load_stage(spec, reader, room, device, range(spec.num_layers))
        for layer in stage.layers:
            if isinstance(layer.memory, DeviceSlots):
                continue
            layer.memory.pools.normal_()
            if layer.memory.scales is None:
                layer.memory.latents.normal_()
            else:
                layer.memory.latents.random_(-127, 128)
                layer.memory.scales.fill_(0.03)
        torch.cuda.synchronize(device)
        return cls(stage, cache_dir, time.perf_counter() - begin)

    def measure(self, cases: Sequence[RowsCase], told: Told = nobody) -> dict[str, float]:
        """Median milliseconds of each case that the caches can hold."""
        room, device = self.stage.room, self.stage.device
        inputs = RowsInput.empty(room.max_pages, device)
        scratch = rows_scratch(self.stage, self.cache_dir)
        found: dict[str, float] = {}
        cases = [
            case
            for case in cases
            if case.position + case.rows <= room.max_pages * room.page_tokens
            and case.sequences <= room.max_slots
        ]
        programs: dict[int, RowsProgram] = {}
        with noting_launches() as modules:
            for case in cases:
                rows = case.sequences * case.rows
                if rows not in programs:
                    programs[rows] = RowsProgram(self.stage, rows, inputs, scratch, self.cache_dir)
                    self._describe(inputs, case)
                    programs[rows].run()
        compile_together(modules)
        graphs: dict[int, torch.cuda.CUDAGraph] = {}
        for case in cases:
            self._describe(inputs, case)
            rows = case.sequences * case.rows
            if rows not in graphs:
                programs[rows].run()
                torch.cuda.synchronize(device)
                graphs[rows] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[rows]):
                    programs[rows].run()
            found[case.name] = self._timed(graphs[rows].replay, inputs, case)
            if not programs[rows].logits.isfinite().all():
                found[case.name] = float("nan")
            told(case.name, found[case.name])
        return found

    def prefill(self, tokens: int, chunk_tokens: int) -> float:
        """Median tokens a second of a prompt of so many tokens, its chunks one after the other."""
        stage, device = self.stage, self.stage.device
        torch.cuda.empty_cache()  # blocks for other chunk sizes would stay beside those for this one
        program = PrefillProgram(stage, chunk_tokens, self.cache_dir)
        table = torch.arange(stage.room.max_pages, dtype=torch.int32, device=device)[None]
        ids = torch.randint(stage.spec.vocab_size, (tokens,), device=device)
        rates = []
        for i in range(_PREFILL_REPEATS + 1):
            stage.reset_slot(0)
            begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
            begin.record()
            for start in range(0, tokens, chunk_tokens):
                program.run(ChunkInput(ids[start : start + chunk_tokens], 0, start, chunk_tokens, table))
            end.record()
            end.synchronize()
            if i:
                rates.append(tokens / float(begin.elapsed_time(end)) * 1e3)
        if not program.streams.isfinite().all():
            return float("nan")
        return round(statistics.median(rates), 1)

    def _describe(self, inputs: RowsInput, case: RowsCase) -> None:
        room = self.stage.room
        rows = case.sequences * case.rows
        inputs.positions[:rows] = (
            torch.arange(case.rows, device=inputs.positions.device).repeat(case.sequences).int()
            + case.position
        )
        runs = torch.arange(case.sequences, device=inputs.slots.device, dtype=torch.int32)
        inputs.run_of_row[:rows] = runs.repeat_interleave(case.rows)
        inputs.run_starts.fill_(rows)
        inputs.run_starts[: case.sequences] = runs * case.rows
        inputs.slots[: case.sequences] = runs
        each = room.total_pages // case.sequences
        pages = torch.arange(room.max_pages, device=inputs.slots.device, dtype=torch.int32) % each
        for run in range(case.sequences):
            inputs.page_tables[run] = pages + run * each

    def _timed(self, replay: Callable[[], None], inputs: RowsInput, case: RowsCase) -> float:
        times = []
        for i in range(_WARM_UP + _REPEATS):
            inputs.token_ids.random_(0, self.stage.spec.vocab_size)
            for layer in self.stage.layers:
                if isinstance(layer.memory, DeviceSlots):
                    # As after a step of the same size whose rows were all accepted.
                    layer.memory.committed.fill_(case.position - case.rows)
            begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            if i >= _WARM_UP:
                times.append(float(begin.elapsed_time(end)))
        return round(statistics.median(times), 3)


def rehearse(
    spec: Glm5NextSpec,
    bits: BitWidths,
    plan: RehearsalPlan,
    device: torch.device,
    cache_dir: Path | None,
    told: Told = nobody,
) -> dict[str, object]:
    """Build, measure, and return the record: card, steps, and bytes by term, planned and measured."""
    room = CacheRoom(plan.pages, PAGE_TOKENS, SLOTS, plan.pages, eight_bit=plan.cache_format == "q8")
    torch.empty(0, device=device)  # the driver context must be there before it is asked
    torch.cuda.reset_peak_memory_stats(device)
    rehearsal = Rehearsal.build(spec, bits, room, device, cache_dir)
    stage = rehearsal.stage
    resident = torch.cuda.memory_allocated(device)
    steps = rehearsal.measure(STEPS, told)
    for chunk in (2048, 4096, LONGEST_CHUNK):
        name = f"prefill_8192_c{chunk}_tps"
        steps[name] = rehearsal.prefill(8192, chunk)
        told(name, steps[name])
    return {
        "model": model_name(spec),
        "card": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "weights": "random, EXL3 mul1",
        "context_tokens": plan.context_tokens,
        "cache_format": plan.cache_format,
        "load_seconds": round(rehearsal.load_seconds, 1),
        "steps": steps,
        "memory": {
            "planned": {
                "weights": plan.weights_bytes,
                "caches": plan.caches_bytes,
                "working": plan.working_bytes,
            },
            "measured": {
                "weights": stage.weight_bytes,
                "caches": stage.cache_bytes,
                "resident": resident,
                "peak": torch.cuda.max_memory_allocated(device),
            },
        },
    }
