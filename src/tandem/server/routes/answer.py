"""What both generation routes do with a prepared request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tandem.api import Service
from tandem.core.log import get_logger
from tandem.core.outputs import Delta
from tandem.core.plan import KIB
from tandem.core.process import trim_heap
from tandem.server.accounting import timings_of, usage_of
from tandem.server.body import read_body
from tandem.server.config import ServerConfig
from tandem.server.context import ServerContext
from tandem.server.generation import Ended, Generation
from tandem.server.prepare import Prepared
from tandem.server.shapes import AnswerShape
from tandem.server.sse import ChunkStream, EventStream
from tandem.text.tokenizer import Tokenizer

_log = get_logger("server")
CLIENT_CLOSED_REQUEST = 499
LARGE_BODY_BYTES = 128 * KIB
"""Tokenizing so much leaves tens of MiB of freed memory with the allocator, which keeps it unless told."""

Prepare = Callable[[Service, ServerConfig, bytes], Prepared]
MakeShape = Callable[[Prepared, Tokenizer], AnswerShape]
Result = TypeVar("Result")


async def answer(
    request: Request, context: ServerContext, prepare: Prepare, make_shape: MakeShape
) -> Response:
    """Validate, submit, and answer whole or as a stream.

    Everything that can be refused is refused before the first byte: a stream's headers leave with its
    first event, or after one keep-alive interval without any.
    """
    try:
        body = await read_body(request, context.config.max_body_bytes)
        context.monitor.require_ready()
        prepared = await context.off_loop(partial(_prepare, prepare, context, body))
        shape = make_shape(prepared, context.service.text.tokenizer)
        generation = Generation(context.service, prepared.choices, context.metrics)
        close = partial(_close, context, generation, prepared)
        context.monitor.open_generations.add(generation)
        try:
            generation.start()
            if not prepared.wants_stream:
                return await _whole(request, generation, shape, close)
            return await _stream(request, context, generation, prepared, shape)
        except BaseException:
            close()
            raise
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


def _prepare(prepare: Prepare, context: ServerContext, body: bytes) -> Prepared:
    try:
        return prepare(context.service, context.config, body)
    finally:
        if len(body) >= LARGE_BODY_BYTES:
            trim_heap()


async def _stream(
    request: Request,
    context: ServerContext,
    generation: Generation,
    prepared: Prepared,
    shape: AnswerShape,
) -> Response:
    keepalive_s = context.config.keepalive_s
    first = await _unless_gone(request, generation.next_event(keepalive_s))
    chunks = ChunkStream(
        generation,
        shape,
        keepalive_s=keepalive_s,
        wants_usage_chunk=prepared.wants_usage_chunk,
        on_error=context.metrics.count_error,
    )
    return EventStream(chunks.run(first), on_close=partial(_close, context, generation, prepared))


async def _whole(
    request: Request, generation: Generation, shape: AnswerShape, close: Callable[[], None]
) -> Response:
    deltas: dict[int, list[Delta]] = {choice.index: [] for choice in generation.choices}

    async def collect() -> None:
        while not generation.is_done:
            event = await generation.next_event(None)
            if event is not None and not isinstance(event, Ended):
                deltas[event.index].append(event.delta)

    await _unless_gone(request, collect())
    choices = [shape.whole(index, deltas[index], generation.ended[index].reason) for index in sorted(deltas)]
    content = shape.answer(choices, usage_of(generation))
    close()
    return JSONResponse({**content, "timings": timings_of(generation)})


def _close(context: ServerContext, generation: Generation, prepared: Prepared) -> None:
    """Once a request, however it ended."""
    if generation not in context.monitor.open_generations:
        return
    context.monitor.open_generations.discard(generation)
    generation.close()
    elapsed_s = time.monotonic() - generation.started_at
    usage = usage_of(generation)
    if generation.is_done:
        context.metrics.end_to_end.observe(elapsed_s)
    reasons = ",".join(generation.ended[index].reason for index in sorted(generation.ended))
    _log.info(
        "%s %s: %d prompt (%d cached) + %d tokens in %.2f s",
        prepared.id,
        reasons if generation.is_done else "cut off",
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        elapsed_s,
    )


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``; raises ClientDisconnect as soon as nobody waits for it any more."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
