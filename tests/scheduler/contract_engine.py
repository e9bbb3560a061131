"""A step engine of integers that checks the contract of ``core.batch`` on every call.

Its "key/value" of a position is a hash of the token, the position, the kind of run that computed it and
*everything that can be read through the page table below it*; its recurrent state is a hash chain. The next
token is a hash of all of that, the seed and the number of the output token. So a wrong page, a page written
by somebody else, stale state, a replay in the wrong kind of run or a token out of place changes the output.
Beside each value, and each kept state, stands which tokens it was computed from: where reuse is approximate
the values may differ, but what is read must still be that of the sequence's own tokens.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from tandem.core.batch import (
    MAX_ROWS_PER_RUN,
    Batch,
    EngineLimits,
    Run,
    RunKind,
    Sampled,
    SequenceSpec,
    SlotFault,
    StepResult,
)
from tandem.core.requests import GenerationRequest

VOCABULARY = 23


def key_value(kind: RunKind, token: int, position: int, below: list[int | None], state: int) -> int:
    return hash((kind.value == "prefill", token, position, tuple(below), state))


def next_token(cells: list[int | None], state: int, seed: int, index: int) -> int:
    return hash((tuple(cells), state, seed, index)) % VOCABULARY


def alone(request: GenerationRequest, *, recurrent: bool, context_tokens: int) -> list[int]:
    """The tokens of a request that runs by itself on an endless pool, up to its stop token or length."""
    history = list(request.prompt_tokens)
    cells: list[int | None] = []
    state = 0
    output: list[int] = []
    while True:
        while len(cells) < len(history):
            position = len(cells)
            kind = RunKind.PREFILL if position < len(request.prompt_tokens) else RunKind.ROWS
            cells.append(key_value(kind, history[position], position, cells, state))
            state = hash((state, cells[-1])) if recurrent else 0
        token = next_token(cells, state, request.sampling.seed, len(output))
        output.append(token)
        history.append(token)
        if token in request.stop_token_ids or len(output) == request.max_tokens:
            return output
        if len(history) == context_tokens:
            return output


@dataclass
class Lease:
    """One sequence's stay in a slot."""

    spec: SequenceSpec
    history: list[int]
    position: int = 0
    state: int = 0
    in_flight: int = 0
    pages: tuple[int, ...] = ()
    submitted: int = 0
    """Positions handed over in submitted runs."""
    samples_due: int = 0


@dataclass
class Checkpoint:
    position: int
    state: int
    tokens: tuple[int, ...]


@dataclass
class Pending:
    batch: Batch
    future: Future[StepResult]
    result: StepResult | None = None


@dataclass
class ContractEngine:
    """``eager`` computes a batch when it is submitted, else when it is finished: a real pipeline is
    somewhere between. ``faulty_seeds`` names sequences whose samples come out as slot faults;
    ``faulty_start`` makes them fail in the run that starts there instead."""

    limits: EngineLimits
    eager: bool = True
    faulty_seeds: frozenset[int] = frozenset()
    faulty_start: int | None = None
    constant_token: int | None = None
    batches: list[Batch] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    pending: deque[Pending] = field(default_factory=deque)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    shutdowns: int = 0
    computed_rows: int = 0

    def __post_init__(self) -> None:
        size = self.limits.page_tokens
        self.cells: list[list[int | None]] = [[None] * size for _ in range(self.limits.total_pages)]
        self.origins: list[list[int | None]] = [[None] * size for _ in range(self.limits.total_pages)]

    # The protocol

    def open_sequence(self, slot: int, spec: SequenceSpec) -> None:
        self._require_open()
        assert 0 <= slot < self.limits.max_slots
        assert slot not in self.leases, f"slot {slot} is taken"
        assert 1 <= spec.prompt_length <= len(spec.history)
        self.leases[slot] = Lease(spec, list(spec.history))

    def close_sequence(self, slot: int) -> None:
        self._require_open()
        assert self.leases[slot].in_flight == 0, f"slot {slot} is closed with a batch in flight"
        del self.leases[slot]

    def submit(self, batch: Batch) -> Future[StepResult]:
        self._require_open()
        assert len(self.pending) < self.limits.pipeline_depth, "too many batches in flight"
        assert batch.step == len(self.batches), "steps are not counted"
        self._check_batch(batch)
        for run in batch.runs:
            self._check_run(run)
        self.batches.append(batch)
        pending = Pending(batch, Future())
        if self.eager:
            pending.result = self._compute(batch)
        self.pending.append(pending)
        return pending.future

    def shutdown(self) -> None:
        self.shutdowns += 1

    # Driven by the test

    def finish_oldest(self) -> StepResult:
        """Complete the oldest batch in flight."""
        pending = self.pending.popleft()
        result = pending.result or self._compute(pending.batch)
        for run in pending.batch.runs:
            lease = self.leases[run.slot]
            lease.in_flight -= 1
        for sampled in result.sampled:
            lease = self.leases[sampled.slot]
            lease.history.extend(sampled.tokens)
            lease.samples_due -= 1
        pending.future.set_result(result)
        return result

    def _require_open(self) -> None:
        assert self.shutdowns == 0, "used after shutdown"

    def _check_batch(self, batch: Batch) -> None:
        assert batch.runs, "an empty batch"
        slots = [run.slot for run in batch.runs]
        assert len(set(slots)) == len(slots), "a slot occurs twice"
        kinds = [run.kind for run in batch.runs]
        assert kinds == sorted(kinds, key=lambda kind: kind is RunKind.PREFILL), "ROWS come first"
        rows = sum(len(run.tokens) for run in batch.runs if run.kind is RunKind.ROWS)
        assert rows <= self.limits.max_step_rows
        for run in batch.runs:
            written = set(self._written(run))
            for other in batch.runs:
                assert other is run or not written & set(other.pages), "a shared page is written"
        saved = [run.save_checkpoint for run in batch.runs if run.save_checkpoint is not None]
        restored = {run.restore_checkpoint for run in batch.runs if run.restore_checkpoint is not None}
        assert len(set(saved)) == len(saved), "two runs save under one number"
        assert not restored & set(saved), "a checkpoint is overwritten in the step that reads it"

    def _written(self, run: Run) -> tuple[int, ...]:
        size = self.limits.page_tokens
        return run.pages[run.start // size : -(-(run.start + len(run.tokens)) // size)]

    def _check_run(self, run: Run) -> None:
        lease = self.leases[run.slot]
        end = run.start + len(run.tokens)
        assert len(set(run.pages)) == len(run.pages)
        assert len(run.pages) * self.limits.page_tokens >= end
        assert end < self.limits.context_tokens or end <= lease.spec.prompt_length
        assert run.pages != lease.pages or run.pages is lease.pages, "an unchanged table is a new tuple"
        assert run.tokens == tuple(lease.history[run.start : end]), "not the sequence's tokens"
        assert run.sample == (end == len(lease.history)), "samples in the wrong place"
        if run.kind is RunKind.PREFILL:
            chunk = self.limits.chunk_tokens
            assert run.start % chunk == 0, "PREFILL off the grid"
            assert end == min(run.start + chunk, lease.spec.prompt_length), "not a whole chunk"
            assert run.start >= lease.submitted, "positions go backwards"
        else:
            assert 1 <= len(run.tokens) <= MAX_ROWS_PER_RUN
            assert run.start >= lease.spec.prompt_length, "a prompt position computed as ROWS"
            assert run.start == lease.submitted, "positions are not contiguous"
        if self.limits.state_checkpoints:
            assert run.start == lease.submitted or run.restore_checkpoint is not None, "state is missing"
        else:
            assert run.restore_checkpoint is None
            assert run.save_checkpoint is None
        lease.pages = run.pages
        lease.submitted = end
        lease.in_flight += 1
        lease.samples_due += run.sample

    def _compute(self, batch: Batch) -> StepResult:
        sampled: list[Sampled] = []
        faults: list[SlotFault] = []
        for run in batch.runs:
            lease = self.leases[run.slot]
            self._compute_run(run, lease)
            seed = lease.spec.sampling.seed
            failing = run.sample if self.faulty_start is None else run.start == self.faulty_start
            if failing and seed in self.faulty_seeds:
                faults.append(SlotFault(run.slot, "logits are not finite"))
                continue
            if not run.sample:
                continue
            index = len(lease.history) - lease.spec.prompt_length
            token = next_token(self._read(run.pages, run.start + len(run.tokens)), lease.state, seed, index)
            if self.constant_token is not None:
                token = self.constant_token
            sampled.append(Sampled(run.slot, (token,), (None,)))
        return StepResult(batch.step, tuple(sampled), tuple(faults))

    def _compute_run(self, run: Run, lease: Lease) -> None:
        if run.restore_checkpoint is not None:
            checkpoint = self.checkpoints[run.restore_checkpoint]
            assert checkpoint.position == run.start, "a checkpoint of another position"
            assert checkpoint.tokens == tuple(lease.history[: run.start]), "the state of other tokens"
            lease.state, lease.position = checkpoint.state, checkpoint.position
        if self.limits.state_checkpoints:
            assert lease.position == run.start, "the recurrent state is elsewhere"
        self._check_origins(run, lease)
        for offset, token in enumerate(run.tokens):
            position = run.start + offset
            below = self._read(run.pages, position)
            assert None not in below, "a position is read that nobody computed"
            page, cell = divmod(position, self.limits.page_tokens)
            value = key_value(run.kind, token, position, below, lease.state)
            self.cells[run.pages[page]][cell] = value
            self.origins[run.pages[page]][cell] = hash(tuple(lease.history[: position + 1]))
            lease.state = hash((lease.state, value)) if self.limits.state_checkpoints else 0
        lease.position = run.start + len(run.tokens)
        self.computed_rows += len(run.tokens)
        if run.save_checkpoint is not None:
            assert 0 <= run.save_checkpoint < self.limits.state_checkpoints
            self.checkpoints[run.save_checkpoint] = Checkpoint(
                lease.position, lease.state, tuple(lease.history[: lease.position])
            )

    def _check_origins(self, run: Run, lease: Lease) -> None:
        for position in range(run.start):
            page, cell = divmod(position, self.limits.page_tokens)
            origin = self.origins[run.pages[page]][cell]
            assert origin == hash(tuple(lease.history[: position + 1])), "a page of other tokens is read"

    def _read(self, pages: tuple[int, ...], end: int) -> list[int | None]:
        size = self.limits.page_tokens
        cells = [cell for page in pages[: -(-end // size)] for cell in self.cells[page]]
        return cells[:end]
