"""Who may wait, and for how long: a bounded first-come-first-served queue, and the refusals at the door.

The queue is the one part of the scheduler that other threads touch. It takes no lock but its own and calls
nobody while it holds it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable

from tandem.core.batch import EngineLimits
from tandem.core.errors import ContextLengthError, NotReadyError, QueueFullError, RequestError
from tandem.core.requests import GenerationRequest
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.sequence import Sequence

_MAX_RETRY_AFTER_S = 60


def longest_sequence_tokens(limits: EngineLimits) -> int:
    """Prompt plus output that one sequence alone can reach: the context, or the whole pool if smaller."""
    return min(limits.context_tokens, limits.total_pages * limits.page_tokens)


def check_request(request: GenerationRequest, context_tokens: int) -> None:
    """Refuse what can never run. Raises RequestError, or ContextLengthError when there is no room for the
    prompt and one token."""
    prompt_tokens = len(request.prompt_tokens)
    if prompt_tokens == 0:
        raise RequestError("The prompt has no tokens", param="messages", remedy="send at least one token")
    if request.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", param="max_tokens", found=str(request.max_tokens))
    if prompt_tokens == context_tokens:
        raise ContextLengthError(
            prompt_tokens=prompt_tokens, context_tokens=context_tokens, max_tokens=request.max_tokens
        )
    if prompt_tokens > context_tokens:
        raise ContextLengthError(prompt_tokens=prompt_tokens, context_tokens=context_tokens)


class AdmissionQueue:
    """Waiting sequences in the order of their arrival; preempted ones come first. Thread-safe.

    A request that finds an idle slot passes through at once and does not count as waiting, so
    ``max_waiting`` 0 means: run now or be refused.
    """

    def __init__(self, config: SchedulerConfig, max_slots: int, clock: Callable[[], float]) -> None:
        self._config = config
        self._max_slots = max_slots
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[Sequence] = deque()
        self._ids: set[str] = set()
        self._arrivals = 0
        self._idle_slots = max_slots
        self._pages_short = False
        self._closed: str | None = None
        self._run_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, sequence: Sequence) -> None:
        """Wait at the end. Raises QueueFullError, NotReadyError (closed), RequestError (id in use)."""
        with self._lock:
            if self._closed is not None:
                raise NotReadyError(self._closed)
            request_id = sequence.request.request_id
            if request_id in self._ids:
                raise RequestError("The request id is in use", found=request_id, remedy="use a unique id")
            room = self._config.max_waiting + (0 if self._pages_short else self._idle_slots)
            if len(self._waiting) >= room:
                raise self._queue_full(f"{len(self._waiting)} requests are waiting, and no more may")
            sequence.order = self._arrivals
            self._arrivals += 1
            self._ids.add(request_id)
            self._waiting.append(sequence)

    def head(self) -> Sequence | None:
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def take_head(self) -> None:
        """The head starts to run and uses a slot."""
        with self._lock:
            self._waiting.popleft()
            self._idle_slots -= 1
            self._pages_short = False

    def hold_head(self) -> None:
        """The head has to wait for pages, though there may be idle slots."""
        with self._lock:
            self._pages_short = True

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence waits again, before all others; it can neither be refused nor expire."""
        with self._lock:
            self._waiting.appendleft(sequence)

    def free_slot(self) -> None:
        with self._lock:
            self._idle_slots += 1

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, wherever it was."""
        with self._lock:
            self._ids.discard(sequence.request.request_id)
            if sequence.admitted_at is not None:
                run_s = self._clock() - sequence.admitted_at
                self._run_s = run_s if self._run_s == 0.0 else 0.8 * self._run_s + 0.2 * run_s

    def remove(self, request_id: str) -> Sequence | None:
        """Take a waiting sequence out; None if it does not wait."""
        with self._lock:
            for sequence in self._waiting:
                if sequence.request.request_id == request_id:
                    self._waiting.remove(sequence)
                    return sequence
            return None

    def position(self, request_id: str) -> int | None:
        """0 = next; None if it does not wait."""
        with self._lock:
            for position, sequence in enumerate(self._waiting):
                if sequence.request.request_id == request_id:
                    return position
            return None

    def take_expired(self, now: float) -> list[tuple[Sequence, QueueFullError]]:
        """Take out those that have waited too long, each with the error that tells so."""
        max_wait_s = self._config.max_wait_s
        if max_wait_s is None:
            return []
        with self._lock:
            expired = [
                s for s in self._waiting if s.admitted_at is None and now - s.submitted_at >= max_wait_s
            ]
            for sequence in expired:
                self._waiting.remove(sequence)
            return [
                (s, self._queue_full(f"No slot came free within {max_wait_s:g} seconds")) for s in expired
            ]

    def next_expiry(self) -> float | None:
        """When the next waiter expires, on the queue's clock."""
        max_wait_s = self._config.max_wait_s
        if max_wait_s is None:
            return None
        with self._lock:
            fresh = (s.submitted_at + max_wait_s for s in self._waiting if s.admitted_at is None)
            return min(fresh, default=None)

    def close(self, reason: str) -> list[Sequence]:
        """From now on refuse everybody, with NotReadyError(``reason``); takes out and returns those that
        have not started yet. Preempted sequences stay."""
        with self._lock:
            self._closed = reason
            fresh = [s for s in self._waiting if s.admitted_at is None]
            for sequence in fresh:
                self._waiting.remove(sequence)
            return fresh

    def clear(self) -> list[Sequence]:
        """Takes out and returns everybody."""
        with self._lock:
            everybody = list(self._waiting)
            self._waiting.clear()
            return everybody

    def _queue_full(self, message: str) -> QueueFullError:
        # With all slots busy one comes free about every run time / slots.
        seconds = math.ceil(self._run_s / self._max_slots)
        return QueueFullError(message, retry_after_s=min(max(seconds, 1), _MAX_RETRY_AFTER_S))
