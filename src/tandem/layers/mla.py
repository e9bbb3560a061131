"""Latent attention over paged latents, sparse where the context is long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tandem.cache.latent import LatentCache
from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.kernels.mla import reference as mla
from tandem.layers.indexer import Indexer
from tandem.layers.operator import Operator

PREFILL_BLOCK_ROWS = 64
"""Rows whose scores are held at once: PREFILL_BLOCK_ROWS · H · T floats."""


@dataclass(frozen=True, slots=True)
class MlaWeights:
    query_down: Operator
    query_norm: Operator
    query_up: Operator
    latent_down: Operator
    latent_norm: Operator
    absorb: tuple[Operator, ...]
    """A head's query into latent space, N → L: the half of kv_b that makes keys, turned around."""
    unabsorb: tuple[Operator, ...]
    """A head's result out of it, L → V: the half that makes values."""
    out: Operator


@dataclass(frozen=True, slots=True)
class Selection:
    """What rows attend to, for the layers that share it."""

    positions: tuple[torch.Tensor, ...] | None
    """Positions a row, int64 ascending; None: all up to its own."""


class MlaLayer:
    """R rows, C rows of a chunk, H heads, L latent size, T tokens."""

    def __init__(
        self,
        weights: MlaWeights,
        cache: LatentCache,
        indexer: Indexer | None,
        *,
        page_tokens: int,
        key_size: int,
    ) -> None:
        """``indexer`` None: the layer attends to the tokens an earlier layer chose. key_size: N."""
        self.cache = cache
        self.indexer = indexer
        self._weights = weights
        self._page_tokens = page_tokens
        self._heads = len(weights.absorb)
        self._scale = key_size**-0.5

    def forward_prefill(
        self, x: torch.Tensor, layout: PrefillLayout, shared: Selection | None
    ) -> tuple[torch.Tensor, Selection]:
        """[C, hidden] → [C, hidden] and the selection used. Rows past ``layout.length`` are not stored.

        Every tensor has the size of a full chunk, so that the bits do not depend on where the prompt ends.
        """
        end = layout.start + layout.length
        q_low_rank, q = self._queries(x)
        own = self._physical(layout.page_table, torch.arange(layout.start, end))
        self.cache.write(own, self._latents(x)[: layout.length])
        selection = shared
        if self.indexer is not None:
            chosen = self.indexer.select_prefill(x, q_low_rank, layout)
            selection = Selection(None if chosen is None else tuple(chosen))
        assert selection is not None, "the stage begins with a layer that shares a selection"
        if selection.positions is None:
            return self._finish(self._attend_causally(q, layout)), selection
        tables = layout.page_table.expand(layout.length, -1)
        attended = self._attend_to(q, tables, selection.positions[: layout.length])
        return self._finish(attended), selection

    def forward_rows(
        self, x: torch.Tensor, layout: RowsLayout, shared: Selection | None
    ) -> tuple[torch.Tensor, Selection]:
        """[R, hidden] → [R, hidden] and the selection used. A row sees the rows of its run before it."""
        q_low_rank, q = self._queries(x)
        tables = layout.page_tables[layout.run_of_row.long()]
        own = torch.cat(
            [
                self._physical(table, position[None])
                for table, position in zip(tables, layout.positions.long(), strict=True)
            ]
        )
        self.cache.write(own, self._latents(x))
        selection = shared
        if self.indexer is not None:
            selection = Selection(tuple(self.indexer.select_rows(x, q_low_rank, layout)))
        assert selection is not None, "the stage begins with a layer that shares a selection"
        assert selection.positions is not None
        return self._finish(self._attend_to(q, tables, selection.positions)), selection

    def _attend_to(
        self, q: torch.Tensor, tables: torch.Tensor, positions: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Each row by itself over its positions, [R, H, L]; rows past the last list stay zero.

        tables: int32 [one a list, max_pages].
        """
        attended = torch.zeros_like(q)
        for row, chosen in enumerate(positions):
            latents = self.cache.read(self._physical(tables[row], chosen))
            attended[row] = mla.latent_attention(q[row : row + 1], latents, None, self._scale)[0]
        return attended

    def _attend_causally(self, q: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        """The chunk's rows over everything up to themselves: [C, H, L]."""
        last, end = layout.start + q.shape[0], layout.start + layout.length
        latents = torch.zeros(last, self.cache.latent_size)
        latents[:end] = self.cache.read(self._physical(layout.page_table, torch.arange(end)))
        positions = torch.arange(layout.start, last)
        return torch.cat(
            [
                mla.latent_attention(
                    q[rows], latents, torch.arange(last) <= positions[rows, None], self._scale
                )
                for rows in torch.split(torch.arange(q.shape[0]), PREFILL_BLOCK_ROWS)
            ]
        )

    def _queries(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The low-rank form [R, q_lora_rank] and the queries in latent space [R, H, L]."""
        w = self._weights
        low_rank = w.query_norm(w.query_down(x))
        q = w.query_up(low_rank).view(x.shape[0], self._heads, -1)
        return low_rank, _per_head(w.absorb, q)

    def _latents(self, x: torch.Tensor) -> torch.Tensor:
        return self._weights.latent_norm(self._weights.latent_down(x))

    def _finish(self, attended: torch.Tensor) -> torch.Tensor:
        return self._weights.out(_per_head(self._weights.unabsorb, attended).flatten(1))

    def _physical(self, page_table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Physical token indices of positions int64 [T]."""
        pages = page_table[positions // self._page_tokens].long()
        return pages * self._page_tokens + positions % self._page_tokens


def _per_head(linears: tuple[Operator, ...], x: torch.Tensor) -> torch.Tensor:
    """Each head's own product: [R, H, in] → [R, H, out]."""
    return torch.stack([linear(x[:, head].contiguous()) for head, linear in enumerate(linears)], dim=1)
