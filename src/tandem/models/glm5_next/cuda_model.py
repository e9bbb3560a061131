"""GLM-5.3-Flash on one stage of a CUDA card: captured steps, prefill chunks and the slots' states."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tandem.cache.layout import LayoutMemory, PrefillLayout, RowsLayout
from tandem.kernels.kda.cuda import DeviceSlots
from tandem.kernels.sampling.cuda import CudaRowSampler
from tandem.models.glm5_next.cuda_head import HeadStep
from tandem.models.glm5_next.cuda_prefill import ChunkInput, PrefillProgram
from tandem.models.glm5_next.cuda_rows import CapturedRows, bucket_of
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS
from tandem.models.glm5_next.cuda_stage import DeviceStage
from tandem.models.glm5_next.cuda_state import SlotStates


class CudaStage:
    """Implements ``StageModel``: ``hidden`` is [R, S·D] and logits are [R, V] on the card.

    Results are views of fixed memory, valid until the next call of the same kind. R rows.
    """

    def __init__(
        self,
        stage: DeviceStage,
        step_memory: LayoutMemory,
        rows: CapturedRows,
        prefill: PrefillProgram,
        head: Mapping[int, HeadStep],
        row_sampler: CudaRowSampler | None,
        working_bytes: int,
    ) -> None:
        self._stage = stage
        self._step_memory = step_memory
        self._rows = rows
        self._prefill = prefill
        self._head = head
        self._row_sampler = row_sampler
        self._working_bytes = working_bytes
        slots = [layer.memory for layer in stage.layers if isinstance(layer.memory, DeviceSlots)]
        self._states = SlotStates(slots, stage.room.max_slots)
        self._after_rows = False
        nothing = torch.empty(1, stage.spec.residual_width, device=stage.device)
        self._no_hidden = [nothing.expand(rows, -1) for rows in range(MAX_ROWS + 1)]

    @property
    def weight_bytes(self) -> int:
        return self._stage.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return self._stage.cache_bytes

    @property
    def working_bytes(self) -> int:
        return self._working_bytes

    @property
    def step_memory(self) -> LayoutMemory:
        return self._step_memory

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Steps and chunks embed by themselves: [R, S·D] of nothing in particular."""
        rows = token_ids.shape[0]
        return self._no_hidden[rows] if rows <= MAX_ROWS else self._no_hidden[1].expand(rows, -1)

    def forward_rows(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        self._after_rows = True
        return self._rows.forward(hidden, layout)

    def forward_prefill(self, hidden: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        if self._states.needs_fold(layout.slot, layout.start):
            # A step folds what was accepted; its own row is never accepted, for the chunk overwrites it.
            self._rows.one_row(layout.slot, layout.start, layout.page_table)
        program = self._prefill
        if self._stage.embedding is None:
            program.streams.flatten(1).copy_(hidden)
        chunk = ChunkInput(
            layout.token_ids, layout.slot, layout.start, layout.length, layout.page_table[None]
        )
        streams = program.run(chunk)
        self._states.prefilled(layout.slot, layout.start + layout.length)
        self._after_rows = False
        return streams.flatten(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        if rows <= MAX_ROWS:
            return self._few_logits(hidden)
        width = self._head[MAX_ROWS].logits.stride(0)  # rows as far apart as those of a step
        many = hidden.new_empty(rows, width)[:, : self._stage.spec.vocab_size]
        for first in range(0, rows, MAX_ROWS):
            part = hidden[first : first + MAX_ROWS]
            many[first : first + MAX_ROWS].copy_(self._few_logits(part))
        return many

    @property
    def row_sampler(self) -> CudaRowSampler | None:
        return self._row_sampler

    def reset_slot(self, slot: int) -> None:
        self._states.reset(slot)

    def save_state(self, slot: int, checkpoint: int) -> None:
        self._states.save(slot, checkpoint, after_rows=self._after_rows)

    def restore_state(self, slot: int, checkpoint: int) -> None:
        self._states.restore(slot, checkpoint)

    def _few_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        step = self._head[bucket_of(rows)]
        step.values.flatten(1)[:rows].copy_(hidden)
        step.replay()
        return step.logits[:rows]
