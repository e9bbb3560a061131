"""Steps of any number of rows over a few captured ones.

A step is captured for every number in ROW_COUNTS. A pass of R rows takes the next larger one; the rows it
lacks are a run of their own in the spare slot and the spare page, where nobody looks. A pass of more than 16
rows is cut between runs into several steps, which changes no bit: a row knows no other sequence.

Steps read their layout where the engine writes it, so that a pass is one copy and one replay. A captured step
begins with gathering the page tables of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tandem.cache.layout import LayoutMemory, RowsLayout
from tandem.core.batch import most_step_rows
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS, ROW_COUNTS


@dataclass(frozen=True, slots=True)
class RowsInput:
    """The step's description at fixed addresses. Only the first 16 rows and runs are read."""

    token_ids: torch.Tensor
    """int64 [M]."""
    positions: torch.Tensor
    """int32 [M]."""
    run_of_row: torch.Tensor
    """int32 [M]."""
    run_starts: torch.Tensor
    """int32 [M + 1]."""
    slots: torch.Tensor
    """int32 [M]."""
    page_tables: torch.Tensor
    """int32 [M, max_pages]."""

    @classmethod
    def of(cls, memory: LayoutMemory) -> RowsInput:
        words = memory.words
        return cls(
            words.token_ids,
            words.positions,
            words.run_of_row,
            words.run_starts,
            words.slots,
            memory.page_tables,
        )

    @classmethod
    def empty(cls, max_pages: int, device: torch.device) -> RowsInput:
        return cls.of(LayoutMemory.empty(MAX_ROWS, 0, 0, max_pages, device))


@dataclass(frozen=True, slots=True)
class Spare:
    """Where padding rows live: one slot and one page beyond those of sequences."""

    slot: int
    page: int


@dataclass(frozen=True, slots=True)
class RowsStep:
    """One captured step of R rows."""

    values: torch.Tensor
    """fp32 [R, S, D]: the residual streams, before it (but on the stage that embeds) and after it."""
    replay: Callable[[], None]


def step_memory(
    max_slots: int, max_pages: int, chunk_tokens: int, spare: Spare, device: torch.device
) -> LayoutMemory:
    """Memory for the layouts of any pass, and a page table of the spare page for the spare slot."""
    rows = most_step_rows(max_slots)
    memory = LayoutMemory.empty(rows, chunk_tokens, max_slots + 1, max_pages, device)
    memory.slot_tables[spare.slot] = spare.page
    return memory


def bucket_of(rows: int) -> int:
    """The smallest of ROW_COUNTS that holds so many rows."""
    return next(count for count in ROW_COUNTS if count >= rows)


def cut_runs(run_starts: Sequence[int]) -> list[tuple[int, int]]:
    """Runs [first, end) of steps with at most 16 rows each; a run has at most 16."""
    cuts, first = [], 0
    for run in range(1, len(run_starts)):
        if run_starts[run] - run_starts[first] > MAX_ROWS:
            cuts.append((first, run - 1))
            first = run - 1
    return [*cuts, (first, len(run_starts) - 1)]


class CapturedRows:
    """All steps of a stage, behind one call."""

    def __init__(
        self, memory: LayoutMemory, steps: Mapping[int, RowsStep], spare: Spare, *, embeds: bool
    ) -> None:
        self._memory = memory
        self._in_place = memory.words.positions.data_ptr()
        self._steps = steps
        self._spare = spare
        self._embeds = embeds
        buckets = {rows: steps[bucket_of(rows)] for rows in range(1, MAX_ROWS + 1)}
        self._of_rows = {rows: (step, step.values.flatten(1)[:rows]) for rows, step in buckets.items()}
        """The step of so many rows and their residual streams."""

    def forward(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        """fp32 [R, S·D] -> [R, S·D], valid until the next call; ``hidden`` is not read where steps embed."""
        rows, runs = layout.token_ids.shape[0], layout.slots.shape[0]
        if rows <= MAX_ROWS:
            if layout.positions.data_ptr() != self._in_place:
                self._describe(layout, (0, rows), (0, runs))
            return self._step(hidden, rows, runs)
        layout = _kept(layout)
        starts = layout.run_starts.tolist()
        parts = []
        for first, end in cut_runs(starts):
            span = (starts[first], starts[end])
            self._describe(layout, span, (first, end))
            parts.append(self._step(hidden[span[0] : span[1]], span[1] - span[0], end - first).clone())
        return torch.cat(parts)

    def one_row(self, slot: int, position: int, page_table: torch.Tensor) -> None:
        """A row whose result nobody reads, of the token that lies there: it may be a chunk's first.

        page_table: int32 [pages].
        """
        words, tables = self._memory.words, self._memory.slot_tables
        words.positions[0].fill_(position)
        words.run_of_row[0].zero_()
        words.run_starts[:2].copy_(torch.arange(2))
        words.slots[0].fill_(slot)
        if page_table.data_ptr() != tables[slot].data_ptr():
            tables[slot, : page_table.shape[0]].copy_(page_table)
        self._steps[1].values.zero_()
        self._steps[1].replay()

    def _step(self, hidden: torch.Tensor, rows: int, runs: int) -> torch.Tensor:
        """Replay the step that is described."""
        step, streams = self._of_rows[rows]
        bucket = step.values.shape[0]
        if bucket > rows:
            self._pad(rows, runs, bucket)
        if not self._embeds:
            streams.copy_(hidden)
        step.replay()
        return streams

    def _pad(self, rows: int, runs: int, bucket: int) -> None:
        """A run of padding after the last one; those after it are empty."""
        words = self._memory.words
        words.token_ids[rows:bucket].zero_()
        torch.arange(bucket - rows, out=words.positions[rows:bucket])
        words.run_of_row[rows:bucket].fill_(runs)
        words.slots[runs].fill_(self._spare.slot)
        words.run_starts[runs + 1 : bucket + 1].fill_(bucket)

    def _describe(self, layout: RowsLayout, rows: tuple[int, int], runs: tuple[int, int]) -> None:
        """Bring rows [first, end) of a layout, which are its runs [first, end), to where steps read."""
        words, tables = self._memory.words, self._memory.slot_tables
        (row, row_end), (run, run_end) = rows, runs
        count, sequences = row_end - row, run_end - run
        words.token_ids[:count].copy_(layout.token_ids[row:row_end])
        words.positions[:count].copy_(layout.positions[row:row_end])
        words.slots[:sequences].copy_(layout.slots[run:run_end])
        words.run_of_row[:count].copy_(layout.run_of_row[row:row_end]).sub_(run)
        words.run_starts[: sequences + 1].copy_(layout.run_starts[run : run_end + 1]).sub_(row)
        words.run_starts[sequences + 1 :].fill_(count)
        if layout.page_tables.data_ptr() != self._memory.page_tables.data_ptr():
            slots, given = layout.slots[run:run_end].long(), layout.page_tables[run:run_end]
            tables[slots, : given.shape[1]] = given


def _kept(layout: RowsLayout) -> RowsLayout:
    """The layout where describing its parts does not overwrite it. Page tables are read by slot."""
    return RowsLayout(
        layout.token_ids.clone(),
        layout.positions.clone(),
        layout.run_of_row.clone(),
        layout.run_starts.clone(),
        layout.slots.clone(),
        layout.page_tables,
    )
