"""Passes of any shape over captured steps of few sizes, with a step that anyone can follow on the CPU."""

from itertools import pairwise

import pytest
import torch

from tandem.cache.layout import RowsLayout
from tandem.core.batch import EngineLimits, Run, RunKind
from tandem.engine.buffers import StageBuffers
from tandem.engine.images import StepImage
from tandem.engine.pages import PageUpdate
from tandem.models.glm5_next.cuda_rows import (
    CapturedRows,
    RowsInput,
    RowsStep,
    Spare,
    bucket_of,
    cut_runs,
    step_memory,
)
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS, ROW_COUNTS

PAGES, ENTRIES, WIDTH, SLOTS, CHUNK = 50, 6, 3, 9, 32
SPARE = Spare(slot=SLOTS, page=PAGES)
CPU = torch.device("cpu")


class FakeSteps:
    """A row's result is a hash of all that its step was told of it; slots and pages seen are kept."""

    def __init__(self, *, embeds: bool) -> None:
        self.memory = step_memory(SLOTS, PAGES, CHUNK, SPARE, CPU)
        self.inputs = RowsInput.of(self.memory)
        for part in (self.inputs.positions, self.inputs.run_of_row):
            part.fill_(-7)
        self.inputs.slots.fill_(SPARE.slot)
        self.embeds = embeds
        self.replayed: list[int] = []
        self.padded: list[int] = []
        steps = {rows: self._step(rows) for rows in ROW_COUNTS}
        self.rows = CapturedRows(self.memory, steps, SPARE, embeds=embeds)

    def _step(self, rows: int) -> RowsStep:
        values = torch.full((rows, 2, WIDTH), torch.nan)
        return RowsStep(values, lambda: self._replay(rows, values))

    def _replay(self, rows: int, values: torch.Tensor) -> None:
        given = self.inputs
        self.replayed.append(rows)
        self.memory.gather(rows)
        starts = given.run_starts[: rows + 1].tolist()
        assert starts == sorted(starts)
        assert starts[0] == 0
        assert starts[-1] == rows
        padding = 0
        for run in range(rows):
            mine = range(starts[run], starts[run + 1])
            slot, table = int(given.slots[run]), given.page_tables[run].tolist()
            if slot == SPARE.slot and len(mine):
                padding += len(mine)
                assert given.positions[mine.start : mine.stop].tolist() == list(range(len(mine)))
                assert set(table) == {SPARE.page}
            for row in mine:
                assert int(given.run_of_row[row]) == run
                known = [int(given.token_ids[row]), int(given.positions[row]), slot, *table[:ENTRIES]]
                entered = [0.0] if self.embeds else values[row].flatten().tolist()
                values[row] = hash((*known, *entered)) % 8191
        self.padded.append(padding)


def layout_of(lengths: list[int], seed: int = 0) -> RowsLayout:
    generator = torch.Generator().manual_seed(seed)

    def ints(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=generator, dtype=torch.int32)

    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    rows, runs = int(starts[-1]), len(lengths)
    first = ints(100, runs)
    run_of_row = torch.arange(runs, dtype=torch.int32).repeat_interleave(torch.tensor(lengths))
    positions = torch.cat([first[i] + torch.arange(n) for i, n in enumerate(lengths)]).int()
    return RowsLayout(
        ints(500, rows).long(),
        positions,
        run_of_row,
        starts,
        torch.randperm(8, generator=generator)[:runs].int(),
        ints(PAGES, runs, ENTRIES),
    )


def one_row(layout: RowsLayout, row: int) -> RowsLayout:
    """The same row as a pass of its own."""
    run = int(layout.run_of_row[row])
    return RowsLayout(
        layout.token_ids[row : row + 1],
        layout.positions[row : row + 1],
        torch.zeros(1, dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        layout.slots[run : run + 1],
        layout.page_tables[run : run + 1],
    )


@pytest.mark.parametrize("embeds", [True, False])
@pytest.mark.parametrize(
    "lengths",
    [[1], [16], [1] * 8, [3, 1, 5], [9], [2, 9], [1, 12], [16, 1], [1, 16, 1], [15, 2, 3, 4], [16, 16, 5]],
    ids=str,
)
def test_every_row_gets_what_it_gets_alone(lengths, embeds):
    steps, alone = FakeSteps(embeds=embeds), FakeSteps(embeds=embeds)
    layout = layout_of(lengths)
    hidden = torch.randn(sum(lengths), 2 * WIDTH)
    found = steps.rows.forward(hidden, layout).clone()
    assert found.shape == hidden.shape
    for row in range(sum(lengths)):
        expected = alone.rows.forward(hidden[row : row + 1], one_row(layout, row))
        assert torch.equal(found[row], expected[0])
    assert sum(steps.replayed) - sum(steps.padded) == sum(lengths)


def test_passes_are_described_by_the_engine_where_steps_read():
    """The engine's own images and buffers, page tables that grow and slots that change hands included."""
    steps, alone = FakeSteps(embeds=False), FakeSteps(embeds=False)
    limits = EngineLimits(4, CHUNK, PAGES, SLOTS, SLOTS + 16, 24, 1)
    buffers, image = StageBuffers(limits, CPU, steps.memory), StepImage(limits, pinned=False)
    tables = torch.zeros(SLOTS, ENTRIES, dtype=torch.int32)
    assert buffers.nbytes == 0
    for seed, lengths in enumerate(([3, 1, 5], [1] * 8, [16], [9], [1, 12], [16, 1, 3], [2], [16, 1])):
        wanted = layout_of(lengths, seed)
        updates = []
        for run, slot in enumerate(wanted.slots.tolist()):
            first = seed % ENTRIES
            tables[slot, first:] = wanted.page_tables[run, first:]
            updates.append(PageUpdate(slot, first, tuple(tables[slot, first:].tolist())))
            wanted.page_tables[run] = tables[slot]
        starts = wanted.run_starts.tolist()
        runs = [
            Run(int(wanted.slots[i]), RunKind.ROWS, tuple(wanted.token_ids[a:b].tolist()),
                int(wanted.positions[a]), (), sample=False)
            for i, (a, b) in enumerate(pairwise(starts))
        ]  # fmt: skip
        image.fill_pages(updates)
        buffers.write_pages(image, updates)
        assert image.fill_rows(runs) == sum(lengths)
        layout = buffers.load_rows(image, sum(lengths), len(runs))
        hidden = torch.randn(sum(lengths), 2 * WIDTH)
        found = steps.rows.forward(hidden, layout).clone()
        for row in range(sum(lengths)):
            expected = alone.rows.forward(hidden[row : row + 1], one_row(wanted, row))
            assert torch.equal(found[row], expected[0]), (seed, row)


def test_memory_that_is_too_small_for_the_engine_is_refused():
    limits = EngineLimits(4, CHUNK, PAGES, SLOTS + 1, SLOTS + 17, 24, 1)
    with pytest.raises(ValueError, match="the engine needs 26 rows and at least"):
        StageBuffers(limits, CPU, step_memory(SLOTS, PAGES, CHUNK, SPARE, CPU))


def test_a_pass_after_a_larger_one_sees_nothing_of_it():
    steps, fresh = FakeSteps(embeds=True), FakeSteps(embeds=True)
    for seed, lengths in enumerate(([16], [1] * 8, [4, 5], [1])):
        layout = layout_of(lengths, seed)
        hidden = torch.zeros(sum(lengths), 2 * WIDTH)
        found = steps.rows.forward(hidden, layout).clone()
        expected = [
            fresh.rows.forward(hidden[:1], one_row(layout, row))[0].clone() for row in range(len(found))
        ]
        assert torch.equal(found, torch.stack(expected))


def test_no_count_below_nine_is_padded():
    assert [bucket_of(rows) for rows in range(1, 9)] == list(range(1, 9))
    assert [bucket_of(rows) for rows in range(9, 17)] == [10, 10, 12, 12, 16, 16, 16, 16]


def test_runs_are_never_cut_and_steps_never_too_large():
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        lengths = torch.randint(1, 17, (9,), generator=generator).tolist()
        starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
        cuts = cut_runs(starts)
        assert [run for first, end in cuts for run in range(first, end)] == list(range(9))
        assert all(0 < starts[end] - starts[first] <= MAX_ROWS for first, end in cuts)


def test_a_row_nobody_reads_is_told_its_slot_position_and_pages():
    steps = FakeSteps(embeds=False)
    chunk = torch.randint(1, 500, (CHUNK,))
    steps.inputs.token_ids[:CHUNK] = chunk
    steps.rows.one_row(4, 128, torch.tensor([7, 8, 9], dtype=torch.int32))
    assert steps.replayed == [1]
    given = steps.inputs
    assert given.token_ids[:CHUNK].tolist() == chunk.tolist()  # the chunk that is about to be computed
    assert (int(given.slots[0]), int(given.positions[0])) == (4, 128)
    assert given.page_tables[0, :3].tolist() == [7, 8, 9]
