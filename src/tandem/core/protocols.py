"""Where rooms meet that may not import each other."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem.core.batch import Batch, EngineLimits, SequenceSpec, StepResult
    from tandem.core.requests import Finish, FinishReason, GenerationRequest, SchedulerStats, TokenOutput


class TokenConstraint(Protocol):
    """A grammar's state for one sequence: text builds it, sampling applies it."""

    def token_mask(self) -> bytes | None:
        """Token i is allowed if bit i%8 of byte i//8 is set. None = all are allowed."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance over a sampled token. Raises TandemError if the token was not allowed."""
        ...


class StepEngine(Protocol):
    """What the scheduler drives. All calls come from the scheduler's single thread.

    Batches are executed in the order of ``submit``; up to ``limits.pipeline_depth`` may be in flight.
    A future that raises is an engine fault: nothing further can be submitted.
    """

    @property
    def limits(self) -> EngineLimits: ...

    def open_sequence(self, slot: int, spec: SequenceSpec) -> None:
        """A sequence takes the slot; its recurrent state, if any, starts at zero."""
        ...

    def close_sequence(self, slot: int) -> None:
        """The slot is free again. Only called when no batch in flight uses it."""
        ...

    def submit(self, batch: Batch) -> Future[StepResult]: ...

    def shutdown(self) -> None:
        """Stop the workers; batches in flight may be cut off. Idempotent."""
        ...


class OutputSink(Protocol):
    """Receives one sequence's outputs, on the scheduler's thread: return quickly, raise nothing on purpose.

    (An exception ends this sequence with an error; others go on.)
    """

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        """Take one token. A reason returned (a stop string was met) ends the sequence at this token."""
        ...

    def on_finish(self, finish: Finish) -> None:
        """The last call."""
        ...


class RequestScheduler(Protocol):
    """What the api room sees of the scheduler. Every call is thread-safe and returns at once."""

    def start(self) -> None: ...

    def submit(self, request: GenerationRequest, sink: OutputSink) -> None:
        """Queue a request. Raises QueueFullError, ContextLengthError, NotReadyError (fault, stop)."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request, waiting or running; its sink gets CANCELLED. Unknown ids are ignored."""
        ...

    def queue_position(self, request_id: str) -> int | None:
        """0 = next; None once it runs or has ended."""
        ...

    def stats(self) -> SchedulerStats: ...

    def fault(self) -> str | None:
        """Why the engine cannot go on, None while it can."""
        ...

    def shutdown(self, drain_timeout_s: float) -> None:
        """Take no more requests; let running ones end for so long, then cut them off. Idempotent."""
        ...
