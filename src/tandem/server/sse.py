"""Server-sent events: a generation as a stream of chunks, kept alive by the wall clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tandem.core.errors import RequestError
from tandem.server.accounting import timings_of, usage_of
from tandem.server.errors import CountError, error_object
from tandem.server.generation import Ended, Event, Generation
from tandem.server.shapes import AnswerShape

DONE = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """``on_close`` runs once the client has everything or is gone, whichever way the stream ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_close()


def encode_event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def encode_comment(text: str) -> bytes:
    """Parsers skip lines that begin with a colon; proxies and clients only see that the line is alive."""
    return f": {text}\n\n".encode()


class ChunkStream:
    """The events of one generation as SSE bytes, from a first event that was already awaited."""

    def __init__(
        self,
        generation: Generation,
        shape: AnswerShape,
        *,
        keepalive_s: float,
        wants_usage_chunk: bool,
        on_error: CountError,
    ) -> None:
        self._generation = generation
        self._shape = shape
        self._keepalive_s = keepalive_s
        self._wants_usage_chunk = wants_usage_chunk
        self._on_error = on_error
        self._opened: set[int] = set()

    async def run(self, event: Event | None) -> AsyncIterator[bytes]:
        """Yields chunks, ``[DONE]`` last; or an error event, and nothing after it."""
        try:
            while True:
                yield self._encode(event)
                if self._generation.is_done:
                    break
                # The timer starts anew once a write is through, so the silence never exceeds it.
                event = await self._generation.next_event(self._keepalive_s)
        except RequestError as error:
            self._on_error(error)
            yield encode_event(error_object(error))
            return
        if self._wants_usage_chunk:
            chunk = self._shape.usage_chunk(usage_of(self._generation))
            yield encode_event({**chunk, "timings": timings_of(self._generation)})
        yield DONE

    def _encode(self, event: Event | None) -> bytes:
        if event is None:
            position = self._generation.queue_position
            return encode_comment("working" if position is None else f"queued {position}")
        encoded = b""
        if event.index not in self._opened:
            self._opened.add(event.index)
            opening = self._shape.opening(event.index)
            encoded = b"" if opening is None else encode_event(opening)
        if not isinstance(event, Ended):
            return encoded + encode_event(self._shape.piece(event.index, event.delta))
        last = self._shape.ended(event.index, event.reason)
        if self._generation.is_done:
            last["timings"] = timings_of(self._generation)
        return encoded + encode_event(last)
