"""Steps of any number of rows over a few captured ones.

A step is captured for every number in ROW_COUNTS. A pass of R rows takes the next larger one; the rows it
lacks are a run of their own in the spare slot and the spare page, where nobody looks. A pass of more than 16
rows is cut between runs into several steps, which changes no bit: a row knows no other sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tandem.cache.layout import RowsLayout
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS, ROW_COUNTS


@dataclass(frozen=True, slots=True)
class RowsInput:
    """The step's description at fixed addresses; the host fills it before a replay."""

    token_ids: torch.Tensor
    """int64 [16]."""
    positions: torch.Tensor
    """int32 [16]."""
    run_of_row: torch.Tensor
    """int32 [16]."""
    run_starts: torch.Tensor
    """int32 [17]."""
    slots: torch.Tensor
    """int32 [16]."""
    page_tables: torch.Tensor
    """int32 [16, max_pages]."""

    @classmethod
    def empty(cls, max_pages: int, device: torch.device) -> RowsInput:
        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        ids = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        return cls(
            ids, ints(MAX_ROWS), ints(MAX_ROWS), ints(MAX_ROWS + 1), ints(MAX_ROWS), ints(MAX_ROWS, max_pages)
        )


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


def fill_input(
    inputs: RowsInput, layout: RowsLayout, rows: tuple[int, int], runs: tuple[int, int], spare: Spare
) -> int:
    """Describe rows [first, end) of ``layout``, which are its runs [first, end). Returns the step's rows."""
    (row, row_end), (run, run_end) = rows, runs
    count, sequences = row_end - row, run_end - run
    bucket = bucket_of(count)
    inputs.token_ids[:count].copy_(layout.token_ids[row:row_end])
    inputs.positions[:count].copy_(layout.positions[row:row_end])
    inputs.slots[:sequences].copy_(layout.slots[run:run_end])
    tables = layout.page_tables[run:run_end]
    inputs.page_tables[:sequences, : tables.shape[1]].copy_(tables)
    if run:
        torch.sub(layout.run_of_row[row:row_end], run, out=inputs.run_of_row[:count])
        torch.sub(layout.run_starts[run : run_end + 1], row, out=inputs.run_starts[: sequences + 1])
    else:
        inputs.run_of_row[:count].copy_(layout.run_of_row[:row_end])
        inputs.run_starts[: sequences + 1].copy_(layout.run_starts[: run_end + 1])
    # Runs after the last one are empty; the first of them holds the padding.
    inputs.run_starts[sequences + 1 : bucket + 1].fill_(bucket)
    if bucket > count:
        padding = slice(count, bucket)
        inputs.token_ids[padding].zero_()
        torch.arange(bucket - count, out=inputs.positions[padding])
        inputs.run_of_row[padding].fill_(sequences)
        inputs.slots[sequences].fill_(spare.slot)
        inputs.page_tables[sequences].fill_(spare.page)
    return bucket


class CapturedRows:
    """All steps of a stage, behind one call."""

    def __init__(
        self, inputs: RowsInput, steps: Mapping[int, RowsStep], spare: Spare, *, embeds: bool
    ) -> None:
        self._inputs = inputs
        self._steps = steps
        self._spare = spare
        self._embeds = embeds

    def forward(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        """fp32 [R, S·D] -> [R, S·D], valid until the next call; ``hidden`` is not read where steps embed."""
        rows, runs = layout.token_ids.shape[0], layout.slots.shape[0]
        if rows <= MAX_ROWS:
            return self._step(hidden, layout, (0, rows), (0, runs))
        starts = layout.run_starts.tolist()
        parts = [
            self._step(hidden, layout, (starts[first], starts[end]), (first, end)).clone()
            for first, end in cut_runs(starts)
        ]
        return torch.cat(parts)

    def one_row(self, slot: int, position: int, page_table: torch.Tensor) -> None:
        """A row of token 0 whose result nobody reads. page_table: int32 [pages]."""
        inputs = self._inputs
        inputs.token_ids[0].zero_()
        inputs.positions[0].fill_(position)
        inputs.run_of_row[0].zero_()
        inputs.run_starts[:2].copy_(torch.arange(2))
        inputs.slots[0].fill_(slot)
        inputs.page_tables[0, : page_table.shape[0]].copy_(page_table)
        self._steps[1].values.zero_()
        self._steps[1].replay()

    def _step(
        self, hidden: torch.Tensor, layout: RowsLayout, rows: tuple[int, int], runs: tuple[int, int]
    ) -> torch.Tensor:
        step = self._steps[fill_input(self._inputs, layout, rows, runs, self._spare)]
        streams = step.values.flatten(1)[: rows[1] - rows[0]]
        if not self._embeds:
            streams.copy_(hidden[rows[0] : rows[1]])
        step.replay()
        return streams
