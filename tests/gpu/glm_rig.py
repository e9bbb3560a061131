"""A small random GLM on a card, and the same one on the CPU's reference path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.cache.layout import RowsLayout
from tandem.core.plan import Card, StagePlan
from tandem.kernels.nvrtc import compile_together, noting_launches
from tandem.loader.base import TensorSource
from tandem.models.glm5_next.cuda_prefill import ChunkInput, PrefillProgram
from tandem.models.glm5_next.cuda_rows import RowsInput
from tandem.models.glm5_next.cuda_sizes import SCORES_BYTES
from tandem.models.glm5_next.cuda_stage import CacheRoom, RowsProgram, load_stage, rows_scratch
from tandem.models.glm5_next.cuda_weights import DeviceReader
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.model import build_stage
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS

PAGE_TOKENS, MAX_PAGES, MAX_SLOTS = 16, 24, 4
Step = Sequence[tuple[int, int, Sequence[int]]]
"""Runs: (slot, first position, tokens)."""


def page_table(slot: int) -> list[int]:
    """Pages of different slots interleave and do not ascend."""
    return [(MAX_PAGES - 1 - i) * MAX_SLOTS + slot for i in range(MAX_PAGES)]


class OnCard:
    def __init__(
        self,
        cache_dir: Path,
        *,
        eight_bit: bool = False,
        spec: Glm5NextSpec = SMALL,
        source: TensorSource | None = None,
        embedding_on_host: bool = False,
    ) -> None:
        device = torch.device("cuda", 0)
        source = source or RandomCheckpoint(spec, SMALL_BITS, torch.device("cpu"))
        reader = DeviceReader(source, device)
        room = CacheRoom(MAX_PAGES * MAX_SLOTS, PAGE_TOKENS, MAX_SLOTS, MAX_PAGES, eight_bit)
        self.stage = load_stage(
            spec, reader, room, device, range(spec.num_layers), embedding_on_host=embedding_on_host
        )
        self.inputs = RowsInput.empty(MAX_PAGES, device)
        self._scratch = rows_scratch(self.stage, cache_dir)
        self._programs: dict[int, RowsProgram] = {}
        self._cache_dir = cache_dir

    def prefill(
        self, slot: int, tokens: Sequence[int], chunk_tokens: int, *, scores_bytes: int = SCORES_BYTES
    ) -> torch.Tensor:
        """Logits fp32 [T, V] of a prompt from position 0, on the CPU."""
        program = PrefillProgram(self.stage, chunk_tokens, self._cache_dir, scores_bytes=scores_bytes)
        parts = []
        table = torch.tensor([page_table(slot)], dtype=torch.int32).cuda()
        for start in range(0, len(tokens), chunk_tokens):
            ids = list(tokens[start : start + chunk_tokens])
            padded = torch.tensor(ids + [0] * (chunk_tokens - len(ids))).cuda()
            program.run(ChunkInput(padded, slot, start, len(ids), table))
            parts.append(program.logits(self.stage.head, slice(0, len(ids))).cpu())
        return torch.cat(parts)

    def step(self, runs: Step) -> torch.Tensor:
        """Logits fp32 [R, V] on the CPU."""
        rows = sum(len(tokens) for _, _, tokens in runs)
        layout = _layout(runs)
        inputs, n = self.inputs, len(runs)
        inputs.token_ids[:rows] = layout.token_ids.cuda()
        inputs.positions[:rows] = layout.positions.cuda()
        inputs.run_of_row[:rows] = layout.run_of_row.cuda()
        inputs.run_starts.fill_(rows)
        inputs.run_starts[: n + 1] = layout.run_starts.cuda()
        inputs.slots[:n] = layout.slots.cuda()
        inputs.page_tables[:n] = layout.page_tables.cuda()
        if rows not in self._programs:
            program = RowsProgram(self.stage, rows, inputs, self._scratch, self._cache_dir)
            self._programs[rows] = program
            with noting_launches() as modules:
                program.run()
            compile_together(modules)
        program = self._programs[rows]
        self._scratch.values.fill_(2**30)
        self._scratch.rotated.fill_(float("nan"))
        program.logits.fill_(float("nan"))
        program.run()
        return program.logits.cpu()


@dataclass(frozen=True, slots=True)
class _Reference:
    stage: object

    def step(self, runs: Step) -> torch.Tensor:
        layout = _layout(runs)
        with torch.inference_mode():
            hidden = self.stage.forward_rows(self.stage.embed(layout.token_ids), layout)
            return self.stage.logits(hidden)


def reference(
    cache_dtype: str = "fp16", spec: Glm5NextSpec = SMALL, source: TensorSource | None = None
) -> _Reference:
    source = source or RandomCheckpoint(spec, SMALL_BITS, torch.device("cpu"))
    plan = StagePlan(Card("cpu", 0, 1 << 40), 0, spec.num_layers, True, True)
    return _Reference(
        build_stage(
            spec,
            source,
            plan,
            total_pages=MAX_PAGES * MAX_SLOTS,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=64,
            max_slots=MAX_SLOTS,
            cache_dtype=cache_dtype,
        )
    )


def _layout(runs: Step) -> RowsLayout:
    lengths = [len(tokens) for _, _, tokens in runs]
    return RowsLayout(
        token_ids=torch.tensor([t for _, _, tokens in runs for t in tokens]),
        positions=torch.tensor(
            [start + i for _, start, tokens in runs for i in range(len(tokens))], dtype=torch.int32
        ),
        run_of_row=torch.arange(len(runs), dtype=torch.int32).repeat_interleave(torch.tensor(lengths)),
        run_starts=torch.tensor([0, *lengths]).cumsum(0).int(),
        slots=torch.tensor([slot for slot, _, _ in runs], dtype=torch.int32),
        page_tables=torch.tensor([page_table(slot) for slot, _, _ in runs], dtype=torch.int32),
    )
