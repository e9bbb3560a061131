"""GLM-5.3-Flash on one stage: layers, caches, and at its ends the embedding and the head.

Differs from a plain transformer in four ways: several residual streams instead of one, recurrent layers
between the attention layers, attention over latents that becomes sparse, and experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.layout import LayoutMemory, PrefillLayout, RowsLayout
from tandem.kernels.hyper_connection.reference import mean_streams
from tandem.layers.kda import KdaLayer
from tandem.layers.operator import Operator
from tandem.models.glm5_next.blocks import Block
from tandem.models.glm5_next.dimensions import Glm5NextSpec


@dataclass(frozen=True, slots=True)
class Head:
    """What follows the last layer: mean of the streams, norm, vocabulary."""

    norm: Operator
    vocabulary: Operator


class Glm5NextStage:
    """Consecutive layers with their caches. R rows, C rows of a chunk, S streams of D values.

    Implements ``StageModel``: ``hidden`` is [R, S·D].
    """

    def __init__(
        self,
        spec: Glm5NextSpec,
        blocks: tuple[Block, ...],
        *,
        embedding: torch.Tensor | None,
        head: Head | None,
        weight_bytes: int,
        cache_bytes: int,
    ) -> None:
        self._spec = spec
        self._blocks = blocks
        self._embedding = embedding
        self._head = head
        self._recurrent = [block.attention for block in blocks if isinstance(block.attention, KdaLayer)]
        self._weight_bytes = weight_bytes
        self._cache_bytes = cache_bytes

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def cache_bytes(self) -> int:
        return self._cache_bytes

    @property
    def working_bytes(self) -> int:
        return 0

    @property
    def step_memory(self) -> LayoutMemory | None:
        return None

    @property
    def row_sampler(self) -> None:
        """The host samples."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Every stream starts as the token's embedding: int64 [R] → [R, S·D]."""
        assert self._embedding is not None, "only the stage with the embedding embeds"
        return self._embedding[token_ids].float().repeat(1, self._spec.streams)

    def forward_rows(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        streams, selection = self._streams(hidden), None
        for block in self._blocks:
            streams, selection = block.forward_rows(streams, layout, selection)
        return streams.flatten(1)

    def forward_prefill(self, hidden: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        streams, selection = self._streams(hidden), None
        for block in self._blocks:
            streams, selection = block.forward_prefill(streams, layout, selection)
        return streams.flatten(1)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The trunk's state after its last norm, [R, S·D] → [R, D]: what the head and the MTP layer read."""
        assert self._head is not None, "only the stage with the head has the final norm"
        return self._head.norm(mean_streams(self._streams(hidden)))

    def head_logits(self, state: torch.Tensor) -> torch.Tensor:
        """Logits of states after a final norm, the trunk's or the MTP layer's: [R, D] → [R, V]."""
        assert self._head is not None, "only the stage with the head has logits"
        return self._head.vocabulary(state)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head_logits(self.final_norm(hidden))

    def reset_slot(self, slot: int) -> None:
        for layer in self._recurrent:
            layer.slots.reset(slot)

    def save_state(self, slot: int, checkpoint: int) -> None:
        for layer in self._recurrent:
            layer.slots.save(slot, checkpoint)

    def restore_state(self, slot: int, checkpoint: int) -> None:
        for layer in self._recurrent:
            layer.slots.restore(slot, checkpoint)

    def _streams(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.view(hidden.shape[0], self._spec.streams, self._spec.hidden_size)
