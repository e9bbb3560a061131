"""Grouped-query attention with rotary positions over a paged cache, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandem.kernels.attention import cpu as attention
from tandem.kernels.rope import cpu as rope
from tandem.layers.linear import Linear
from tandem.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What every attention layer of a step shares. M rows."""

    positions: np.ndarray
    """int32 [M]."""
    run_of_row: np.ndarray
    """int32 [M]: which page table is the row's."""
    page_tables: np.ndarray
    """int32 [runs, max_pages]."""
    cosine: np.ndarray
    sine: np.ndarray
    """float32 [M, rotary / 2]."""
    chunk_start: int | None = None
    """Set if the rows are consecutive positions of one sequence from here on: the faster kernel serves."""


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of every query head and key head before the rotation."""

    query: RMSNorm
    key: RMSNorm


class GroupedAttention:
    """``qkv`` gives query, key and value heads in this order; ``out`` maps the heads back to the residual.

    ``window``: positions a row sees, itself included; 0 = all before it.
    """

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        heads: int,
        head_dim: int,
        norms: HeadNorms | None = None,
        window: int = 0,
    ) -> None:
        self.qkv, self.out = qkv, out
        self.heads, self.head_dim = heads, head_dim
        self.kv_heads = (qkv.weight.out_features // head_dim - heads) // 2
        self.norms = norms
        self.window = window
        self._scale = np.float32(head_dim**-0.5)

    @property
    def weight_bytes(self) -> int:
        norms = 0 if self.norms is None else self.norms.query.weight_bytes + self.norms.key.weight_bytes
        return self.qkv.weight_bytes + self.out.weight_bytes + norms

    def add_to(
        self, residual: np.ndarray, x: np.ndarray, step: AttentionStep, pool: np.ndarray, layer: int
    ) -> None:
        """residual [M, H] += attention of x [M, H]; its keys and values go to ``layer`` of ``pool`` first."""
        rows, heads = x.shape[0], self.heads
        projected = self.qkv.forward(x).reshape(rows, heads + 2 * self.kv_heads, self.head_dim)
        if self.norms is not None:
            query, key = self.norms.query, self.norms.key
            rope.normalize_heads(projected, heads, query.weight, key.weight, query.eps)
        rope.rotate(projected, heads + self.kv_heads, step.cosine, step.sine)
        attention.append(projected, heads, step.positions, step.run_of_row, step.page_tables, pool, layer)
        mixed = np.empty((rows, heads, self.head_dim), np.float32)
        if step.chunk_start is None:
            attention.attend_rows(
                projected,
                heads,
                step.positions,
                step.run_of_row,
                step.page_tables,
                pool,
                layer,
                self.window,
                self._scale,
                mixed,
            )
        else:
            attention.attend_chunk(
                projected,
                heads,
                step.chunk_start,
                step.page_tables[0],
                pool,
                layer,
                self.window,
                self._scale,
                mixed,
            )
        self.out.add_to(residual, mixed.reshape(rows, -1))
