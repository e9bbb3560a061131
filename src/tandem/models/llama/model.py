"""Consecutive layers of a Llama-like model on one CPU card.

Decode rows and prompt chunks go through the same kernels, whose bits for a row depend on nothing beside it
(``docs/row-independence.md``). So a chunk is computed without its padding, and a position has the same bits
whether it came from a chunk or from single steps.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from tandem.cache.layout import LayoutMemory, PrefillLayout, RowsLayout
from tandem.cache.paged import PagedCache, PagedSpec
from tandem.core.errors import ModelUnsupportedError
from tandem.core.plan import StagePlan
from tandem.kernels.jit import parallel_region
from tandem.kernels.rope import cpu as rope
from tandem.layers.attention import AttentionStep, GroupedAttention
from tandem.layers.embedding import Embedding
from tandem.layers.linear import GatedLinear, Linear
from tandem.layers.norm import RMSNorm
from tandem.loader.base import TensorSource
from tandem.models.base import ModelSpec
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.llama.reader import LayerReader


class LlamaLayer:
    """One transformer layer."""

    def __init__(self, reader: LayerReader, layer: int) -> None:
        self.attention_norm = reader.norm(layer, "attention_norm")
        self.attention = reader.attention(layer)
        self.mlp_norm = reader.norm(layer, "mlp_norm")
        self.gate_up, self.down = reader.mlp(layer)

    @property
    def weight_bytes(self) -> int:
        parts: tuple[RMSNorm | GroupedAttention | GatedLinear | Linear, ...]
        parts = (self.attention_norm, self.attention, self.mlp_norm, self.gate_up, self.down)
        return sum(part.weight_bytes for part in parts)

    def forward(self, hidden: np.ndarray, step: AttentionStep, pool: np.ndarray, layer: int) -> None:
        """hidden float32 [M, H], updated in place; ``layer`` is its number within the stage's pool."""
        self.attention.add_to(hidden, self.attention_norm.forward(hidden), step, pool, layer)
        self.down.add_to(hidden, self.gate_up.forward(self.mlp_norm.forward(hidden)))


class LlamaStage:
    """A StageModel (``models/base.py``). No recurrent state: the hooks for it do nothing."""

    def __init__(self, reader: LayerReader, stage: StagePlan, cache: PagedCache) -> None:
        self.layers = [LlamaLayer(reader, layer) for layer in range(stage.first_layer, stage.end_layer)]
        self.cache = cache
        self.embedding: Embedding | None = None
        self.norm: RMSNorm | None = None
        self.head: Linear | None = None
        if stage.has_embedding:
            self.embedding = Embedding(reader.table("embedding"))
        if stage.has_head:
            tied = reader.head_is_tied
            shared = self.embedding.table if tied and self.embedding is not None else None
            self.head = Linear(shared or reader.table("embedding" if tied else "head"))
            self.norm = reader.final_norm()
        self._frequencies = reader.inverse_frequencies()
        self._layer_multiply_adds = reader.spec.hidden_size * reader.spec.intermediate_size
        self._rope_factor = np.float32(reader.spec.rope.attention_factor)

    @property
    def weight_bytes(self) -> int:
        total = sum(layer.weight_bytes for layer in self.layers)
        tables = {id(part.table): part.table for part in [self.embedding] if part is not None}
        if self.head is not None and self.norm is not None:
            tables[id(self.head.weight)] = self.head.weight
            total += self.norm.weight_bytes
        return total + sum(table.memory_bytes for table in tables.values())

    @property
    def cache_bytes(self) -> int:
        return self.cache.cache_bytes

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
        assert self.embedding is not None, "this stage has no embedding"
        return torch.from_numpy(self.embedding.forward(token_ids.numpy()))

    def forward_rows(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        positions = layout.positions.numpy()
        step = self._step(positions, layout.run_of_row.numpy(), layout.page_tables.numpy(), None)
        self._forward(hidden.numpy(), step)
        return hidden

    def forward_prefill(self, hidden: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        positions = np.arange(layout.start, layout.start + layout.length, dtype=np.int32)
        table = layout.page_table.numpy()[None]
        step = self._step(positions, np.zeros(layout.length, np.int32), table, layout.start)
        self._forward(hidden.numpy()[: layout.length], step)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        assert self.norm is not None, "this stage has no head"
        assert self.head is not None, "this stage has no head"
        with parallel_region():
            return torch.from_numpy(self.head.forward(self.norm.forward(hidden.numpy())))

    def reset_slot(self, slot: int) -> None:
        """Nothing is kept per slot."""

    def save_state(self, slot: int, checkpoint: int) -> None:
        """Nothing is kept per slot."""

    def restore_state(self, slot: int, checkpoint: int) -> None:
        """Nothing is kept per slot."""

    def _step(
        self, positions: np.ndarray, run_of_row: np.ndarray, page_tables: np.ndarray, start: int | None
    ) -> AttentionStep:
        cosine, sine = np.empty((2, positions.size, self._frequencies.size), np.float32)
        rope.angles(positions, self._frequencies, self._rope_factor, cosine, sine)
        return AttentionStep(positions, run_of_row, page_tables, cosine, sine, start)

    def _forward(self, hidden: np.ndarray, step: AttentionStep) -> None:
        with parallel_region(hidden.shape[0] * self._layer_multiply_adds):
            for i, layer in enumerate(self.layers):
                layer.forward(hidden, step, self.cache.pool, i)


def build_stage(
    spec: ModelSpec,
    weights: TensorSource,
    stage: StagePlan,
    *,
    total_pages: int,
    page_tokens: int,
    chunk_tokens: int,
    max_slots: int,
    cache_dtype: str,
) -> LlamaStage:
    """Read the stage's tensors and reserve its pages.

    Raises ModelDamagedError or ModelUnsupportedError naming the tensor, SettingsError for the cache format,
    ModelUnsupportedError for a CUDA card.
    ``chunk_tokens`` and ``max_slots`` set no size here: the kernels take any number of rows.
    """
    llama = cast(LlamaSpec, spec)
    if stage.card.kind == "cuda":
        raise ModelUnsupportedError(
            f"{llama.architecture} is computed on CPU cards only",
            found=f"layers on {stage.card.name}",
            remedy="--cards cpu:1",
        )
    cache_spec = PagedSpec(llama.kv_heads, llama.head_dim, page_tokens, cache_dtype)
    cache = PagedCache(cache_spec, stage.end_layer - stage.first_layer, total_pages)
    return LlamaStage(LayerReader(llama, weights), stage, cache)
