"""From the scheduler's integers to what travels down the stages.

Messages of one FIFO; every stage handles them in the order the scheduler gave them. Their host images are
filled once and read by every stage, so that the cost in Python does not grow with the number of stages.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from tandem.core.batch import (
    MAX_ROWS_PER_RUN,
    Batch,
    EngineLimits,
    Run,
    RunKind,
    Sampled,
    SlotFault,
    StepResult,
)
from tandem.engine.images import ImagePool, StepImage
from tandem.engine.pages import PageTableTracker, PageUpdate
from tandem.sampling.sequence import SequenceSampler


@dataclass(slots=True, eq=False)
class StepInFlight:
    """A batch on its way; the last stage collects its outcome."""

    step: int
    future: Future[StepResult] = field(default_factory=Future)
    sampled: list[Sampled] = field(default_factory=list)
    faults: list[SlotFault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # so that nobody can cancel it any more

    def result(self) -> StepResult:
        return StepResult(self.step, tuple(self.sampled), tuple(self.faults))


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A sequence takes the slot, in order with the passes before and after it."""

    slot: int
    sampler: SequenceSampler


@dataclass(frozen=True, slots=True)
class CloseSlot:
    slot: int


@dataclass(frozen=True, slots=True)
class RowsPass:
    """All ROWS runs of a batch: R rows, N runs."""

    step: StepInFlight
    ends_step: bool
    runs: tuple[Run, ...]
    image: StepImage
    rows: int
    page_updates: tuple[PageUpdate, ...]


@dataclass(frozen=True, slots=True)
class PrefillPass:
    """One PREFILL run: one chunk of one prompt."""

    step: StepInFlight
    ends_step: bool
    run: Run
    image: StepImage
    page_updates: tuple[PageUpdate, ...]


Pass = RowsPass | PrefillPass
Message = OpenSlot | CloseSlot | RowsPass | PrefillPass


class StepBuilder:
    """Turns batches into passes. Used by the thread that submits, one call at a time."""

    def __init__(self, limits: EngineLimits, images: ImagePool) -> None:
        self._limits = limits
        self._images = images
        self._tables = PageTableTracker(limits.max_slots)
        self._table_entries = limits.table_entries

    def forget(self, slot: int) -> None:
        """The slot has a new owner: its page table starts from nothing."""
        self._tables.forget(slot)

    def passes(self, step: StepInFlight, batch: Batch) -> list[Pass]:
        """The passes of one batch, in order. Raises ValueError for a batch that breaks the contract."""
        rows = tuple(run for run in batch.runs if run.kind is RunKind.ROWS)
        chunks = [run for run in batch.runs if run.kind is RunKind.PREFILL]
        self._check(batch, sum(len(run.tokens) for run in rows))
        passes: list[Pass] = []
        if rows:
            passes.append(self._rows_pass(step, rows, ends_step=not chunks))
        passes += [self._prefill_pass(step, run, ends_step=run is chunks[-1]) for run in chunks]
        return passes

    def _rows_pass(self, step: StepInFlight, runs: tuple[Run, ...], *, ends_step: bool) -> RowsPass:
        image = self._images.acquire()
        rows = image.fill_rows(runs)
        return RowsPass(step, ends_step, runs, image, rows, self._page_updates(runs, image))

    def _prefill_pass(self, step: StepInFlight, run: Run, *, ends_step: bool) -> PrefillPass:
        image = self._images.acquire()
        image.fill_prefill(run.tokens, self._limits.chunk_tokens)
        return PrefillPass(step, ends_step, run, image, self._page_updates((run,), image))

    def _page_updates(self, runs: tuple[Run, ...], image: StepImage) -> tuple[PageUpdate, ...]:
        updates: list[PageUpdate] = []
        for run in runs:
            update = self._tables.changes(run.slot, run.pages)
            if update is None:
                continue
            if not 0 <= min(update.pages) <= max(update.pages) < self._limits.total_pages:
                raise ValueError(f"slot {run.slot}: pages are 0..{self._limits.total_pages - 1}")
            if len(run.pages) > self._table_entries:
                raise ValueError(
                    f"slot {run.slot}: {len(run.pages)} pages; at most {self._table_entries} a sequence"
                )
            updates.append(update)
        image.fill_pages(updates)
        return tuple(updates)

    def _check(self, batch: Batch, rows: int) -> None:
        limits = self._limits
        if rows > limits.max_step_rows:
            raise ValueError(f"step {batch.step} has {rows} rows; at most {limits.max_step_rows}")
        if len({run.slot for run in batch.runs}) != len(batch.runs):
            raise ValueError(f"step {batch.step} names a slot twice")
        for run in batch.runs:
            _check_run(run, batch.step, limits)


def _check_run(run: Run, step: int, limits: EngineLimits) -> None:
    """One wrong number here would be a wrong answer somewhere else: another sequence's page or state."""
    where = f"step {step}, slot {run.slot}"
    end = run.start + len(run.tokens)
    longest = limits.chunk_tokens if run.kind is RunKind.PREFILL else MAX_ROWS_PER_RUN
    if not 0 <= run.slot < limits.max_slots:
        raise ValueError(f"{where}: slots are 0..{limits.max_slots - 1}")
    if not 1 <= len(run.tokens) <= longest:
        raise ValueError(f"{where}: {len(run.tokens)} tokens in a {run.kind.value} run of 1..{longest}")
    if run.kind is RunKind.PREFILL and run.start % limits.chunk_tokens:
        raise ValueError(f"{where}: a chunk starts at {run.start}, no multiple of {limits.chunk_tokens}")
    if run.start < 0 or end > limits.context_tokens:
        raise ValueError(f"{where}: positions {run.start}..{end - 1} of a context of {limits.context_tokens}")
    if len(run.pages) * limits.page_tokens < end:
        raise ValueError(f"{where}: {len(run.pages)} pages of {limits.page_tokens} do not cover {end} tokens")
