"""The indexer of one MLA layer: which cached tokens each row attends to."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.cache.pooled_index import PooledIndexCache
from tandem.kernels.indexer import reference as kernel
from tandem.layers.operator import Operator

SCORED_ROWS = 16
"""Rows of a chunk whose scores are held at once: SCORED_ROWS · H · N floats."""


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    query: Operator
    """From the query's low-rank form: q_lora_rank → H·D."""
    key: Operator
    key_norm_weight: torch.Tensor
    key_norm_bias: torch.Tensor
    gate: Operator
    head_weights: Operator
    position_bias: torch.Tensor
    """[P, D] float32."""


class Indexer:
    """R rows, H index heads of D values, pools of P tokens, C rows of a chunk, T tokens."""

    def __init__(
        self,
        weights: IndexerWeights,
        cache: PooledIndexCache,
        *,
        heads: int,
        topk_tokens: int,
        page_tokens: int,
    ) -> None:
        self.cache = cache
        self._weights = weights
        self._heads = heads
        self._pool_tokens = cache.pool_tokens
        self._topk_pools = topk_tokens // cache.pool_tokens
        self._pools_per_page = page_tokens // cache.pool_tokens

    def select_prefill(
        self, x: torch.Tensor, q_low_rank: torch.Tensor, layout: PrefillLayout
    ) -> list[torch.Tensor] | None:
        """Store the chunk's keys; return each row's attended positions, int64 ascending.

        None stands for plain causal attention: the context is no longer than what is always chosen. Every
        tensor has the size of a full chunk, so that the bits do not depend on where the prompt ends in it.
        """
        C, end = x.shape[0], layout.start + layout.length
        pools = self._physical(layout.page_table, end // self._pool_tokens)
        first_pool = layout.start // self._pool_tokens
        self.cache.append_chunk(
            layout.slot,
            layout.start,
            layout.length,
            self._keys_and_gates(x),
            pools[first_pool:],
            self._weights.position_bias,
        )
        last = layout.start + C
        if last // self._pool_tokens <= self._topk_pools:
            return None
        pooled = torch.zeros(last // self._pool_tokens, self._weights.position_bias.shape[1])
        pooled[: pools.shape[0]] = self.cache.read(pools)
        positions = torch.arange(layout.start, last)
        q, head_weights = self._queries(x, q_low_rank)
        selected: list[torch.Tensor] = []
        for rows in torch.split(torch.arange(C), SCORED_ROWS):
            scores = kernel.score_pools(q[rows], head_weights[rows], pooled)
            visible = (positions[rows] + 1) // self._pool_tokens
            chosen = kernel.select_pools(scores, visible, self._topk_pools)
            mask = kernel.attended_tokens(chosen, positions[rows], self._pool_tokens, last)
            selected += [row.nonzero()[:, 0] for row in mask]
        return selected

    def select_rows(
        self, x: torch.Tensor, q_low_rank: torch.Tensor, layout: RowsLayout
    ) -> list[torch.Tensor]:
        """Store the rows' keys; return each row's attended positions, int64 ascending."""
        keys_and_gates = self._keys_and_gates(x)
        q, head_weights = self._queries(x, q_low_rank)
        positions, runs = layout.positions.tolist(), layout.run_of_row.tolist()
        slots = layout.slots.tolist()
        for row, position in enumerate(positions):
            table = layout.page_tables[runs[row]]
            pool = self._physical(table, position // self._pool_tokens + 1)[-1:]
            self.cache.append_row(
                slots[runs[row]], position, keys_and_gates[row], pool, self._weights.position_bias
            )
        selected = []
        for row, position in enumerate(positions):
            visible = (position + 1) // self._pool_tokens
            if visible <= self._topk_pools:
                selected.append(torch.arange(position + 1))
                continue
            pooled = self.cache.read(self._physical(layout.page_tables[runs[row]], visible))
            one = slice(row, row + 1)
            scores = kernel.score_pools(q[one], head_weights[one], pooled)
            chosen = kernel.select_pools(scores, torch.tensor([visible]), self._topk_pools)
            mask = kernel.attended_tokens(chosen, torch.tensor([position]), self._pool_tokens, position + 1)
            selected.append(mask[0].nonzero()[:, 0])
        return selected

    def _keys_and_gates(self, x: torch.Tensor) -> torch.Tensor:
        """[R, 2, D]."""
        w = self._weights
        keys = torch.nn.functional.layer_norm(
            w.key(x), w.key_norm_weight.shape, w.key_norm_weight, w.key_norm_bias, kernel.LAYER_NORM_EPS
        )
        return torch.stack((keys, w.gate(x)), dim=1)

    def _queries(self, x: torch.Tensor, q_low_rank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = self._weights.query(q_low_rank)
        return q.view(x.shape[0], self._heads, -1), self._weights.head_weights(x)

    def _physical(self, page_table: torch.Tensor, pools: int) -> torch.Tensor:
        """Physical indices of a sequence's first pools, int64 [pools]."""
        pool = torch.arange(pools)
        page = page_table[pool // self._pools_per_page].long()
        return page * self._pools_per_page + pool % self._pools_per_page
