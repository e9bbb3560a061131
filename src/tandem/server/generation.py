"""One HTTP request's sequences: submitted together, read as one stream of events, cancelled together.

::

    scheduler thread                          event loop
    on_token ─ OutputProcessor ─ Piece ──┐
    on_finish ─────────────────── Ended ─┴─ call_soon_threadsafe ─> queue ─> route ─> client

Nothing on the scheduler's thread waits for a client: a slow one only lets its own queue grow, by at most the
text of its own ``max_tokens``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tandem.api import Service
from tandem.core.errors import NotReadyError, RequestError
from tandem.core.log import get_logger
from tandem.core.outputs import Delta
from tandem.core.requests import Finish, FinishReason, GenerationRequest, TokenOutput
from tandem.server.errors import as_request_error
from tandem.server.metrics import Metrics
from tandem.text.output import OutputProcessor

_log = get_logger("server")


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence to generate, and how its tokens are read."""

    index: int
    prompt_index: int
    """Choices of the same prompt share it: usage counts a prompt once."""
    request: GenerationRequest
    processor: OutputProcessor


@dataclass(frozen=True, slots=True)
class Piece:
    index: int
    delta: Delta


@dataclass(frozen=True, slots=True)
class Ended:
    index: int
    finish: Finish
    reason: str
    """OpenAI's word."""
    reasoning_tokens: int


Event = Piece | Ended


class Generation:
    """Belongs to the event loop it was made on; ``close`` may be called any number of times."""

    def __init__(self, service: Service, choices: Sequence[Choice], metrics: Metrics) -> None:
        self.choices = tuple(choices)
        self.ended: dict[int, Ended] = {}
        self.started_at = time.monotonic()
        self._service = service
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | RequestError] = asyncio.Queue()
        self._open: set[str] = set()
        self._counted_prompts: set[int] = set()

    def start(self) -> None:
        """Submit all sequences or none. Raises QueueFullError, ContextLengthError or NotReadyError."""
        try:
            for choice in self.choices:
                self._open.add(choice.request.request_id)
                self._service.submit(choice.request, _Sink(self, choice, self._metrics))
        except BaseException:
            self.close()
            raise

    @property
    def is_done(self) -> bool:
        return len(self.ended) == len(self.choices)

    @property
    def queue_position(self) -> int | None:
        """Of the sequence that waits longest; None once all run."""
        positions = [self._service.scheduler.queue_position(request_id) for request_id in self._open]
        return max((position for position in positions if position is not None), default=None)

    async def next_event(self, timeout_s: float | None) -> Event | None:
        """The next event; None after a silence of ``timeout_s``.

        Raises RequestError if one sequence failed, or the server is shutting down: the request as a whole
        then has, and ``close`` is due.
        """
        try:
            async with asyncio.timeout(timeout_s):
                event = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(event, RequestError):
            raise event
        if isinstance(event, Ended):
            self.ended[event.index] = event
            self._open.discard(self.choices[event.index].request.request_id)
            if event.finish.error is not None:
                raise as_request_error(event.finish.error)
            if event.finish.reason is FinishReason.CANCELLED:
                raise NotReadyError("The server is shutting down")
            if event.finish.reason is FinishReason.ERROR:
                raise RequestError("The sequence ended with an error", status=500, code="engine_error")
        return event

    def close(self) -> None:
        """Cancel whatever still waits or runs."""
        for request_id in self._open:
            self._service.cancel(request_id)
        self._open.clear()

    def post(self, event: Event | RequestError) -> None:
        """Thread-safe. An error ends the whole request. After the loop has ended there is nobody to tell."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:
            _log.debug("the event loop ended before a sequence did")

    def count(self, choice: Choice, finish: Finish) -> None:
        """Add a finished sequence to the counters; called once a sequence, on the scheduler's thread."""
        usage = finish.usage
        is_first = choice.prompt_index not in self._counted_prompts
        self._counted_prompts.add(choice.prompt_index)
        self._metrics.count_tokens(usage.prompt_tokens if is_first else 0, usage.completion_tokens)


class _Sink:
    """The scheduler's side of one choice (core.protocols.OutputSink)."""

    def __init__(self, generation: Generation, choice: Choice, metrics: Metrics) -> None:
        self._generation = generation
        self._choice = choice
        self._metrics = metrics
        self._last_token_at: float | None = None

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        now = time.monotonic()
        if self._last_token_at is None:
            self._metrics.time_to_first_token.observe(now - self._generation.started_at)
        else:
            self._metrics.inter_token.observe(now - self._last_token_at)
        self._last_token_at = now
        self._post_delta(self._choice.processor.push(output))
        return FinishReason.STOP if self._choice.processor.stopped else None

    def on_finish(self, finish: Finish) -> None:
        processor = self._choice.processor
        self._generation.count(self._choice, finish)
        self._metrics.queue_time.observe(finish.timings.queue_ms / 1000)
        self._metrics.finished.labels(finished_reason=finish.reason.value).inc()
        if finish.error is None:
            try:
                self._post_delta(processor.finish(finish.reason))
                reason = processor.finish_reason(finish.reason)
            except Exception as error:
                _log.exception("reading the output of %s failed", self._choice.request.request_id)
                self._generation.post(as_request_error(error))
                return
        else:
            reason = finish.reason.value
        self._generation.post(Ended(self._choice.index, finish, reason, processor.reasoning_tokens))

    def _post_delta(self, delta: Delta) -> None:
        if delta:
            self._generation.post(Piece(self._choice.index, delta))
