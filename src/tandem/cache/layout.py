"""The tensors that describe one step to a stage. Built by the engine, read by caches, layers and kernels.

Everything is a view of memory allocated once, so that a step can be captured with fixed addresses and
replayed without asking the host anything.

Alphabet: R rows, N runs, C chunk_tokens; M most rows of a pass, S slots, P entries of a page table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True, slots=True)
class LayoutWords:
    """A pass's integers in one piece of memory, so that one copy takes them from the host to a card::

        int32  positions [M] │ run_of_row [M] │ slots [M] │ run_starts [M + 1] │ 1 unused
        int64  token_ids [max(M, C)]

    Runs after the last of a pass are empty: ``run_starts`` repeats R to its end.
    """

    memory: torch.Tensor
    """int32, all of the above."""
    of_rows: torch.Tensor
    """What a ROWS pass has of it: the integers and M tokens."""
    positions: torch.Tensor
    run_of_row: torch.Tensor
    slots: torch.Tensor
    run_starts: torch.Tensor
    token_ids: torch.Tensor

    @classmethod
    def empty(
        cls, rows: int, chunk_tokens: int, device: torch.device | None = None, *, pinned: bool = False
    ) -> Self:
        """Zeros, for passes of up to ``rows`` rows or one chunk; on the host without ``device``."""
        ints = 4 * rows + 2  # even: the tokens lie at a multiple of 8 bytes
        size = ints + 2 * max(rows, chunk_tokens)
        memory = torch.zeros(size, dtype=torch.int32, device=device, pin_memory=pinned)
        return cls(
            memory,
            memory[: ints + 2 * rows],
            memory[:rows],
            memory[rows : 2 * rows],
            memory[2 * rows : 3 * rows],
            memory[3 * rows : 4 * rows + 1],
            memory[ints:].view(torch.int64),
        )

    def copy_rows(self, image: LayoutWords) -> None:
        """Take a ROWS pass over from ``image``, of the same sizes; the copy is queued where it can be."""
        self.of_rows.copy_(image.of_rows, non_blocking=True)

    def copy_chunk(self, image: LayoutWords) -> None:
        """Take a chunk's tokens over from ``image``, as ``copy_rows``."""
        self.token_ids.copy_(image.token_ids, non_blocking=True)


@dataclass(frozen=True, slots=True)
class LayoutMemory:
    """Where the layouts of one stage lie, on its device."""

    words: LayoutWords
    slot_tables: torch.Tensor
    """int32 [S or more, P]: every slot's page table."""
    page_tables: torch.Tensor
    """int32 [M, P]: the tables of a pass's runs."""

    @classmethod
    def empty(cls, rows: int, chunk_tokens: int, slots: int, entries: int, device: torch.device) -> Self:
        return cls(
            LayoutWords.empty(rows, chunk_tokens, device),
            torch.zeros(slots, entries, dtype=torch.int32, device=device),
            torch.zeros(rows, entries, dtype=torch.int32, device=device),
        )

    @property
    def nbytes(self) -> int:
        return self.words.memory.nbytes + self.slot_tables.nbytes + self.page_tables.nbytes

    def gather(self, runs: int) -> None:
        """Fill ``page_tables`` of a pass's runs, or of more: slots after its last run are some slots."""
        torch.index_select(self.slot_tables, 0, self.words.slots[:runs], out=self.page_tables[:runs])


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
    """int32 [N, P], physical page of positions [i·page_tokens, (i + 1)·page_tokens). Entries past
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
