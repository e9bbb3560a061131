"""The scheduler proper: a single-threaded state machine between requests and the engine.

::

    add ──► queue ──► running ──► next_batch ──► engine ──► commit ──► sinks
              ▲          │                                    │
              └─ preempt ┴──── pool is dry                    └─► finished: slot and pages given back

It never blocks and reads no clock but the one it is given; ``loop.py`` supplies thread and waiting.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from tandem.core.batch import Batch, Run, RunKind, Sampled, SlotFault, StepResult
from tandem.core.errors import EngineFault, RequestError, TandemError
from tandem.core.log import get_logger
from tandem.core.protocols import OutputSink, StepEngine
from tandem.core.requests import Finish, FinishReason, GenerationRequest, SchedulerStats, TokenOutput
from tandem.scheduler.admission import AdmissionQueue, check_request, longest_sequence_tokens
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.decode import plan_rows
from tandem.scheduler.memory import SequenceMemory
from tandem.scheduler.prefill import plan_chunks
from tandem.scheduler.sequence import Sequence

_log = get_logger("scheduler")


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch in flight, with the sequences its runs belong to and the chunks others wait for."""

    batch: Batch
    sequences: tuple[Sequence, ...]
    claims: frozenset[int]


@dataclass(slots=True)
class _Counts:
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_query_tokens: int = 0
    preemptions: int = 0
    steps: int = 0


class StepScheduler:
    """``add``, ``queue.position`` and ``snapshot`` may be used from any thread; the rest belongs to one.

    An exception that leaves ``next_batch`` or ``commit`` is an engine fault: call ``abort`` with it.
    """

    def __init__(
        self, engine: StepEngine, config: SchedulerConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._config = config
        self._clock = clock
        self._limits = engine.limits
        self._context_tokens = longest_sequence_tokens(self._limits)
        self.queue = AdmissionQueue(config, self._limits.max_slots, clock)
        self.memory = self._fresh_memory()
        self._free_slots = list(range(self._limits.max_slots))
        self._running: dict[int, Sequence] = {}
        self._in_flight: deque[_Step] = deque()
        self._claims: set[int] = set()
        self._next_step = 0
        self._room = 0
        """Changes whenever a waiting sequence that did not fit might fit now."""
        self._refused_head: tuple[int, int] | None = None
        self._farewells: deque[tuple[OutputSink, Finish]] = deque()
        self._counts = _Counts()
        self._finished: Counter[str] = Counter()
        self.snapshot = self._stats()
        """The latest consistent picture, without ``last_step_age_s``; taken before any ``on_finish``."""

    # Requests come and go ----------------------------------------------------------------------

    def add(self, request: GenerationRequest, sink: OutputSink) -> None:
        """Queue a request. Raises ContextLengthError, QueueFullError, NotReadyError, RequestError."""
        check_request(request, self._context_tokens)
        self.queue.put(Sequence(request, sink, self._clock()))

    def cancel(self, request_id: str) -> None:
        """End a request; what it holds is free at once, or when its batch in flight returns."""
        sequence = self.queue.remove(request_id)
        if sequence is None:
            running = (s for s in self._running.values() if s.request.request_id == request_id)
            sequence = next((s for s in running if not s.ended), None)
        if sequence is not None:
            self._end(sequence, FinishReason.CANCELLED)
            self._depart_if_due(sequence)
        self._flush()

    def expire(self) -> None:
        """End the requests that have waited too long."""
        for sequence, error in self.queue.take_expired(self._clock()):
            self._end(sequence, FinishReason.ERROR, error)
        self._flush()

    def close(self, reason: str, error: TandemError) -> None:
        """Take no more requests; those that have not started end with ``error``, the others go on."""
        for sequence in self.queue.close(reason):
            self._end(sequence, FinishReason.ERROR, error)
        self._flush()

    def abort(self, reason: str, error: TandemError) -> None:
        """Everybody ends with ``error``, and nobody is taken any more. The engine is not touched again."""
        for sequence in [*self._running.values(), *self.queue.close(reason), *self.queue.clear()]:
            if not sequence.ended:
                self._end(sequence, FinishReason.ERROR, error)
        self._running.clear()
        self._in_flight.clear()
        self._claims.clear()
        reused_tokens = self.memory.reused_tokens
        self.memory = self._fresh_memory()
        self.memory.reused_tokens = reused_tokens
        self._flush()

    @property
    def idle(self) -> bool:
        """Nobody runs and nobody waits."""
        return not self._running and not len(self.queue)

    @property
    def in_flight(self) -> int:
        """Batches handed out and not committed yet."""
        return len(self._in_flight)

    # One step ----------------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        """The next step's work; None when nothing can be done before a commit or a new request."""
        if len(self._in_flight) >= self._limits.pipeline_depth:
            return None
        self._admit()
        step = self._next_step
        claims = set(self._claims)
        planned = plan_rows(list(self._running.values()), self.memory, self._secure, self._limits, step=step)
        planned += plan_chunks(
            list(self._running.values()),
            self.memory,
            self._secure,
            self._claims,
            step=step,
            chunk_tokens=self._limits.chunk_tokens,
            max_chunks=self._config.max_prefill_chunks_per_step,
        )
        self._flush()
        if not planned:
            if self._running and not self._in_flight:
                raise EngineFault(
                    "The scheduler cannot go on: sequences run, and none of them can take a step",
                    found=self._describe(),
                )
            return None
        batch = Batch(step, tuple(run for _, run in planned))
        sequences = tuple(sequence for sequence, _ in planned)
        self._in_flight.append(_Step(batch, sequences, frozenset(self._claims - claims)))
        self._next_step += 1
        return batch

    def commit(self, result: StepResult) -> None:
        """Take the oldest batch in flight back. Raises EngineFault if the result is not that batch's."""
        step = self._in_flight.popleft()
        if result.step != step.batch.step:
            raise EngineFault(
                "The engine returned another step", found=f"{result.step}, expected {step.batch.step}"
            )
        self._claims -= step.claims
        self._counts.steps += 1
        sampled = {entry.slot: entry for entry in result.sampled}
        faults = {fault.slot: fault for fault in result.faults}
        for run, sequence in zip(step.batch.runs, step.sequences, strict=True):
            sequence.in_flight -= 1
            if run.slot in faults:
                self._fail(sequence, run, faults[run.slot])
            else:
                self._settle(sequence, run)
                if run.sample:
                    self._deliver(sequence, sampled.get(run.slot))
            self._depart_if_due(sequence)
        if not self._running:
            self.check()
        self._flush()

    def check(self) -> None:
        """Conservation: free + cached + live pages = total, page by page. Raises EngineFault."""
        self.memory.check([sequence.pages for sequence in self._running.values()])

    # Admission and preemption ------------------------------------------------------------------

    def _admit(self) -> None:
        while self._free_slots and (sequence := self.queue.head()) is not None:
            if not self._fits(sequence):
                self.queue.hold_head()
                return
            self.queue.take_head()
            if sequence.admitted_at is None:
                sequence.admitted_at = self._clock()
                if self.memory.shares(sequence):
                    self._counts.prefix_query_tokens += sequence.prompt_length
            try:
                self._engine.open_sequence(self._free_slots[0], sequence.spec())
            except EngineFault:
                raise
            except Exception as error:
                self._refuse_start(sequence, error)
                continue
            sequence.slot = heapq.heappop(self._free_slots)
            self._running[sequence.slot] = sequence
            self.memory.enter(sequence)

    def _refuse_start(self, sequence: Sequence, error: Exception) -> None:
        """The engine cannot sample as this request wants; nothing has been opened."""
        _log.error("request %s cannot start", sequence.request.request_id, exc_info=error)
        self.queue.free_slot()
        self._end(sequence, FinishReason.ERROR, _own_error(error, "This request cannot be started"))

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there is room for all it has to compute, beside what the running ones still need."""
        if not self._running:
            return True
        if self._refused_head == (sequence.order, self._room):
            return False
        pool = self.memory.pool
        promised = sum(
            max(0, self._wanted_pages(s) - len(s.pages)) for s in self._running.values() if not s.leaving
        )
        room = pool.free_pages + pool.cached_pages - promised
        wanted = self._wanted_pages(sequence)
        if wanted <= room or wanted - self.memory.live_prefix_pages(sequence) <= room:
            return True
        self._refused_head = (sequence.order, self._room)
        return False

    def _wanted_pages(self, sequence: Sequence) -> int:
        # One page to grow into, or it would be preempted again at once.
        tokens = len(sequence.history) + self._limits.page_tokens
        return self.memory.pages_for(min(tokens, self._context_tokens))

    def _secure(self, sequence: Sequence, end: int) -> bool:
        """Pages for [0, ``end``): free ones, else cached ones, else those of the youngest sequence.

        Nobody takes pages from an older one, so the oldest can always go on, and in the end everybody.
        """
        while not self.memory.grow(sequence, end):
            if any(s.leaving for s in self._running.values()):
                return False
            youngest = max(self._running.values(), key=lambda s: s.order)
            if youngest is sequence:
                return False
            self._counts.preemptions += 1
            youngest.leaving = True
            self._depart_if_due(youngest)
        return True

    def _depart_if_due(self, sequence: Sequence) -> None:
        """Give back slot and pages of a sequence that leaves, unless a batch in flight uses them."""
        if not sequence.leaving or sequence.in_flight or sequence.slot < 0:
            return
        self._engine.close_sequence(sequence.slot)
        self.memory.release(sequence)
        del self._running[sequence.slot]
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.leave()
        self._room += 1
        self.queue.free_slot()
        if not sequence.ended:
            self.queue.put_back(sequence)

    # What came back ----------------------------------------------------------------------------

    def _settle(self, sequence: Sequence, run: Run) -> None:
        self.memory.settle(sequence, run)
        if run.kind is RunKind.PREFILL:
            end = run.start + len(run.tokens)
            self._counts.prompt_tokens += sequence.count_prompt(end, cached=False)
            self._room += 1

    def _fail(self, sequence: Sequence, run: Run, fault: SlotFault) -> None:
        """The sequence's own fault: it alone ends, and nothing it computed is shared."""
        self.memory.spoil(sequence, run)
        if not sequence.ended:
            status, code = (400, "impossible_request") if fault.asked_for else (500, "sequence_fault")
            error = RequestError(fault.message, status=status, code=code)
            self._end(sequence, FinishReason.ERROR, error)

    def _deliver(self, sequence: Sequence, sampled: Sampled | None) -> None:
        if sampled is None or not sampled.tokens:
            raise EngineFault("The engine returned no token for a sequence", found=f"slot {sequence.slot}")
        for token, logprob in zip(sampled.tokens, sampled.logprobs, strict=True):
            if sequence.ended:
                return
            sequence.append(token, self._clock())
            self._counts.generated_tokens += 1
            is_stop = token in sequence.request.stop_token_ids
            try:
                reason = sequence.sink.on_token(TokenOutput(token, logprob, is_stop))
            except Exception as error:
                _log.exception("the sink of request %s failed", sequence.request.request_id)
                self._end(sequence, FinishReason.ERROR, _own_error(error, "The output cannot be processed"))
                return
            if is_stop:
                reason = FinishReason.STOP
            if reason is not None:
                self._end(sequence, reason)
            elif self._is_full(sequence):
                self._end(sequence, FinishReason.LENGTH)
            elif sequence.request.guard_loops and sequence.repeats == self._config.loop_guard_tokens:
                self._end(sequence, FinishReason.ERROR, _loop_error(token, sequence.repeats))

    def _is_full(self, sequence: Sequence) -> bool:
        return (
            sequence.generated >= sequence.request.max_tokens or len(sequence.history) >= self._context_tokens
        )

    def _end(self, sequence: Sequence, reason: FinishReason, error: TandemError | None = None) -> None:
        """The sequence is over. Its sink hears of it in ``_flush``, when the books are in order."""
        sequence.ended = True
        sequence.leaving = True
        self.queue.forget(sequence)
        self._finished[reason.value] += 1
        finish = Finish(reason, sequence.usage(), sequence.timings(self._clock()), error)
        self._farewells.append((sequence.sink, finish))

    def _flush(self) -> None:
        self.snapshot = self._stats()
        while self._farewells:
            sink, finish = self._farewells.popleft()
            try:
                sink.on_finish(finish)
            except Exception:
                _log.exception("a sink failed in on_finish")

    # Figures -----------------------------------------------------------------------------------

    def _fresh_memory(self) -> SequenceMemory:
        return SequenceMemory(self._limits, reuse=self._config.prefix_reuse)

    def _stats(self) -> SchedulerStats:
        pool, counts = self.memory.pool, self._counts
        return SchedulerStats(
            running=len(self._running),
            waiting=len(self.queue),
            total_pages=pool.total_pages,
            free_pages=pool.free_pages,
            cached_pages=pool.cached_pages,
            live_pages=pool.live_pages,
            prompt_tokens_total=counts.prompt_tokens + self.memory.reused_tokens,
            generated_tokens_total=counts.generated_tokens,
            prefix_query_tokens_total=counts.prefix_query_tokens,
            prefix_hit_tokens_total=self.memory.reused_tokens,
            preemptions_total=counts.preemptions,
            steps_total=counts.steps,
            finished_total=dict(self._finished),
        )

    def _describe(self) -> str:
        pool = self.memory.pool
        return (
            f"{len(self._running)} running, {len(self.queue)} waiting, pages: {pool.free_pages} free, "
            f"{pool.cached_pages} cached, {pool.live_pages} live"
        )


def _own_error(error: Exception, message: str) -> TandemError:
    """One sequence's own error: as it is if raised on purpose, else a 500."""
    return error if isinstance(error, TandemError) else RequestError(message, status=500, found=repr(error))


def _loop_error(token: int, repeats: int) -> TandemError:
    return RequestError(
        f"The model repeats itself: token {token} came {repeats} times in a row",
        status=500,
        code="output_loop",
        remedy="if all requests end so, the model's files or kernels are broken",
    )
