"""The tensors that describe one step to a stage. Built by the engine, read by caches, layers and kernels.

Everything is a tensor of a size fixed by the engine's buckets, so that a step can later be captured with
fixed addresses and replayed without asking the host anything.

Alphabet: R rows, N runs, C chunk_tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowsLayout:
    """R rows of N runs (one sequence each, 1..16 consecutive positions), grouped by run::

    row          0   1   2 | 3 | 4   5
    run_of_row   0   0   0 | 1 | 2   2        run_starts = 0, 3, 4, 6
    positions    7   8   9 | 0 | 40  41
    """

    token_ids: torch.Tensor
    """int64 [R]."""
    positions: torch.Tensor
    """int32 [R], absolute position of each row in its sequence."""
    run_of_row: torch.Tensor
    """int32 [R]."""
    run_starts: torch.Tensor
    """int32 [N + 1], rows [run_starts[n], run_starts[n + 1]) belong to run n."""
    slots: torch.Tensor
    """int32 [N], the engine slot of each run (recurrent state)."""
    page_tables: torch.Tensor
    """int32 [N, max_pages], physical page of positions [i·page_tokens, (i + 1)·page_tokens). Entries past
    a run's last page are never read."""


@dataclass(frozen=True, slots=True)
class PrefillLayout:
    """One chunk of one prompt: positions [start, start + length), padded to C rows."""

    slot: int
    start: int
    """A multiple of ``chunk_tokens``."""
    length: int
    """Valid tokens, 1..chunk_tokens. Rows at and after it are padding: nothing of them is stored."""
    chunk_tokens: int
    page_table: torch.Tensor
    """int32 [max_pages], covers at least [0, start + length)."""
    token_ids: torch.Tensor
    """int64 [C]; padded with any valid token id."""
