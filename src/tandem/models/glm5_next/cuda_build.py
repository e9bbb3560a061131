"""Builds a stage of GLM-5.3-Flash on a CUDA card: weights read, caches allocated, steps captured."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from tandem.cache.layout import LayoutMemory
from tandem.cache.sizes import check_page_tokens
from tandem.core.errors import ModelUnsupportedError
from tandem.core.log import get_logger
from tandem.core.plan import StagePlan, format_bytes
from tandem.core.settings import read_environment
from tandem.kernels.exl3.operands import Scratch
from tandem.kernels.hyper_connection.cuda import Streams
from tandem.kernels.kda.cuda import DeviceSlots
from tandem.kernels.nvrtc import KernelModule, compile_together, noting_launches
from tandem.kernels.sampling.cuda import CudaRowSampler
from tandem.loader.base import TensorSource
from tandem.models.glm5_next.cuda_head import HeadProgram, HeadStep
from tandem.models.glm5_next.cuda_limits import cache_is_eight_bit, check_dimensions, check_formats
from tandem.models.glm5_next.cuda_model import CudaStage
from tandem.models.glm5_next.cuda_prefill import ChunkInput, PrefillProgram
from tandem.models.glm5_next.cuda_rows import CapturedRows, RowsInput, RowsStep, Spare, step_memory
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS, ROW_COUNTS
from tandem.models.glm5_next.cuda_stage import (
    AttentionMemory,
    CacheRoom,
    DeviceStage,
    RowsProgram,
    load_stage,
    rows_scratch,
)
from tandem.models.glm5_next.cuda_weights import DeviceReader
from tandem.models.glm5_next.dimensions import Glm5NextSpec

_log = get_logger("models")


class _Program(Protocol):
    def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A step, and before it the page tables of its runs."""

    memory: LayoutMemory
    program: RowsProgram
    rows: int

    def run(self) -> None:
        self.memory.gather(self.rows)
        self.program.run()


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph, and the program whose memory it reads and writes."""

    program: _Program
    graph: torch.cuda.CUDAGraph

    def replay(self) -> None:
        self.graph.replay()


def build_cuda_stage(
    spec: Glm5NextSpec,
    weights: TensorSource,
    stage: StagePlan,
    *,
    total_pages: int,
    page_tokens: int,
    chunk_tokens: int,
    max_slots: int,
    cache_dtype: str,
) -> CudaStage:
    """Read the stage's tensors, allocate its caches and capture its steps. ``cache_dtype``: fp16 or q8.

    Raises SettingsError or ModelUnsupportedError for what the kernels cannot do, ModelDamagedError for a
    tensor that is not whole.
    """
    eight_bit = cache_is_eight_bit(cache_dtype)
    check_dimensions(spec)
    check_page_tokens(page_tokens, spec.index_kpool)
    device = torch.device("cuda", stage.card.index)
    with torch.cuda.device(device):
        reader = DeviceReader(weights, device)
        layers = range(stage.first_layer, stage.end_layer)
        check_formats(spec, reader.headers, layers, has_head=stage.has_head)
        room = CacheRoom(total_pages, page_tokens, max_slots, total_pages, eight_bit)
        try:
            loaded = load_stage(spec, reader, room, device, layers, embedding_on_host=stage.embedding_on_host)
        except ValueError as error:
            raise ModelUnsupportedError(
                "These weights cannot be multiplied on a CUDA card", found=str(error), remedy="--cards cpu:1"
            ) from error
        return _Capture(loaded, chunk_tokens, read_environment().cache_dir).stage()


class _Capture:
    """Runs every step once on padding alone, which compiles its kernels, and captures it."""

    def __init__(self, stage: DeviceStage, chunk_tokens: int, cache_dir: Path | None) -> None:
        self._stage = stage
        self._chunk_tokens = chunk_tokens
        self._cache_dir = cache_dir
        self._spare = Spare(stage.room.max_slots, stage.room.total_pages)
        self._graph_bytes = 0
        self._stream = torch.cuda.Stream(stage.device)  # type: ignore[no-untyped-call]
        room = stage.room
        self._memory = step_memory(room.max_slots, room.max_pages, chunk_tokens, self._spare, stage.device)
        self._inputs = RowsInput.of(self._memory)
        self._inputs.slots.fill_(self._spare.slot)
        self._inputs.positions[:MAX_ROWS].copy_(torch.arange(MAX_ROWS))

    def stage(self) -> CudaStage:
        stage, device = self._stage, self._stage.device
        begin = time.perf_counter()
        torch.cuda.synchronize(device)
        resident = torch.cuda.memory_allocated(device)
        scratch = rows_scratch(stage, self._cache_dir)
        rows, heads = self._row_programs(scratch), self._head_programs(scratch)
        row_sampler = None
        if stage.head:
            row_sampler = CudaRowSampler(stage.spec.vocab_size, device, self._cache_dir)
        self._compile([*rows.values(), *heads.values()], [row_sampler.module] if row_sampler else [])
        compiled = time.perf_counter()
        prefill = PrefillProgram(stage, self._chunk_tokens, self._cache_dir)
        peak = self._warm_prefill(prefill)
        row_steps = {
            n: RowsStep(step.streams.values, self._captured(_Step(self._memory, step, n), n))
            for n, step in rows.items()
        }
        head_steps = {
            n: HeadStep(head.streams.values, head.logits, self._captured(head, n))
            for n, head in heads.items()
        }
        self._clear_spare()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        buffers = torch.cuda.memory_allocated(device) - resident
        _log.info(
            "%s: kernels compiled in %.1f s, %d steps captured in %.1f s; buffers %s, graphs %s,"
            " a chunk of %d tokens another %s",
            device,
            compiled - begin,
            len(row_steps) + len(head_steps),
            time.perf_counter() - compiled,
            format_bytes(buffers),
            format_bytes(self._graph_bytes),
            self._chunk_tokens,
            format_bytes(peak),
        )
        captured = CapturedRows(self._memory, row_steps, self._spare, embeds=stage.embedding is not None)
        working = buffers + self._memory.nbytes + self._graph_bytes
        return CudaStage(stage, self._memory, captured, prefill, head_steps, row_sampler, working)

    def _compile(self, programs: Sequence[_Program], others: Sequence[KernelModule]) -> None:
        with noting_launches() as modules:
            for program in programs:
                program.run()
        compile_together([*modules, *others])

    def _warm_prefill(self, program: PrefillProgram) -> int:
        """Bytes that a chunk takes beside what is allocated."""
        stage, device = self._stage, self._stage.device
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        ids = torch.zeros(self._chunk_tokens, dtype=torch.int64, device=device)
        pages = max(self._chunk_tokens // stage.room.page_tokens, 1)
        table = torch.full((1, max(pages, stage.room.max_pages)), self._spare.page, device=device)
        program.streams.zero_()
        program.run(ChunkInput(ids, self._spare.slot, 0, self._chunk_tokens, table.int()))
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before

    def _row_programs(self, scratch: Scratch) -> dict[int, RowsProgram]:
        trunk = dataclasses.replace(self._stage, head=None)
        programs: dict[int, RowsProgram] = {}
        attention = AttentionMemory.empty(trunk, MAX_ROWS)
        for rows in ROW_COUNTS:
            programs[rows] = RowsProgram(trunk, rows, self._inputs, scratch, self._cache_dir, attention)
            programs[rows].streams.values.zero_()
        return programs

    def _head_programs(self, scratch: Scratch) -> dict[int, HeadProgram]:
        stage = self._stage
        programs: dict[int, HeadProgram] = {}
        for rows in ROW_COUNTS if stage.head else ():
            assert stage.head is not None
            streams = Streams.empty(rows, stage.spec.hidden_size, stage.device)
            streams.values.zero_()
            programs[rows] = HeadProgram(stage.spec, stage.head, streams, scratch, self._cache_dir)
        return programs

    def _captured(self, program: _Program, rows: int) -> Callable[[], None]:
        device = self._stage.device
        self._inputs.run_starts[1:] = rows  # one run of padding; the runs after it are empty
        program.run()
        torch.cuda.synchronize(device)
        free = torch.cuda.mem_get_info(device)[0]
        graph = torch.cuda.CUDAGraph()
        # torch's own capture stream is of the first card that ever captured; other stages may be at work.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            program.run()
        graph.replay()
        torch.cuda.synchronize(device)
        self._graph_bytes += max(free - torch.cuda.mem_get_info(device)[0], 0)
        return _Captured(program, graph).replay

    def _clear_spare(self) -> None:
        """Padding begins at position 0 of an empty slot, always."""
        for layer in self._stage.layers:
            if isinstance(layer.memory, DeviceSlots):
                layer.memory.reset(self._spare.slot)
