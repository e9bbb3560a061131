"""What latent attention on a CUDA card works on: which tokens rows attend to, and results in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class Parts:
    """Unnormalized results: R rows, S parts, H heads, L latent values."""

    attended: torch.Tensor
    """fp32 [R, S, H, L]; unspecified where the total is 0."""
    maxima: torch.Tensor
    """fp32 [R, S, H]."""
    totals: torch.Tensor
    """fp32 [R, S, H]; 0 for a part without tokens."""

    @classmethod
    def empty(cls, rows: int, parts: int, heads: int, latent: int, device: torch.device) -> Parts:
        return cls(
            torch.empty(rows, parts, heads, latent, device=device),
            torch.empty(rows, parts, heads, device=device),
            torch.empty(rows, parts, heads, device=device),
        )

    def first(self, rows: int) -> Parts:
        return Parts(self.attended[:rows], self.maxima[:rows], self.totals[:rows])


@dataclass(frozen=True, slots=True)
class Where:
    """Which tokens rows attend to; all int32."""

    positions: torch.Tensor
    """[R]."""
    run_of_row: torch.Tensor
    """[R]."""
    page_tables: torch.Tensor
    """[N, max_pages]."""
    chosen: torch.Tensor
    """[R, count] pools, for rows that see more than ``count`` of them."""
    page_tokens: int
    pool_tokens: int

    def rows(self, own: slice) -> Where:
        """The same of some rows."""
        return replace(
            self, positions=self.positions[own], run_of_row=self.run_of_row[own], chosen=self.chosen[own]
        )


def parts_for(where_count: int, pool_tokens: int, part_tokens: int) -> int:
    """Parts that hold every token a row can attend to: its pools and the tail after them."""
    return -(-(where_count * pool_tokens + pool_tokens - 1) // part_tokens)
