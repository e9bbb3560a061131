"""Reading a request body with a bound, and reading it strictly as one JSON object."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from starlette.requests import ClientDisconnect, Request

from tandem.core.errors import RequestError
from tandem.core.plan import format_bytes

DISCARD_BYTES = 64 * 1024 * 1024
DISCARD_SECONDS = 5.0
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, at most ``max_bytes`` of it in memory. Raises RequestError 413 or 415.

    The content type must be JSON: it is what makes a browser ask first before it lets a foreign page post.
    """
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    length = request.headers.get("content-length", "")
    refusal = None
    if not is_json:
        refusal = RequestError(
            "The body must be sent as Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
            found=content_type or "no content type",
        )
    elif encoding not in {"identity", ""}:
        refusal = RequestError(
            "Compressed bodies are not supported",
            status=415,
            code="unsupported_media_type",
            found=f"Content-Encoding: {encoding}",
        )
    elif length.isdecimal() and int(length) > max_bytes:
        refusal = _too_large(max_bytes, int(length))
    if refusal is None:
        chunks: list[bytes] = []
        received = 0
        async for chunk in request.stream():
            received += len(chunk)
            if received > max_bytes:
                refusal = _too_large(max_bytes, received)
                break
            chunks.append(chunk)
        else:
            return b"".join(chunks)
    await _discard(request)
    raise refusal


def _too_large(max_bytes: int, found_bytes: int) -> RequestError:
    return RequestError(
        f"The body is larger than this server accepts ({format_bytes(max_bytes)})",
        status=413,
        code="request_too_large",
        found=f"at least {format_bytes(found_bytes)}",
        remedy="shorten the messages",
    )


async def _discard(request: Request) -> None:
    """Read on for a while, keeping nothing: most clients look at the answer only after they have sent all.

    A client that asked first (``Expect: 100-continue``) gets its answer at once.
    """
    if request.headers.get("expect", "").lower() == "100-continue":
        return
    discarded = 0
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while discarded < DISCARD_BYTES:
                message = await request.receive()
                discarded += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except (TimeoutError, ClientDisconnect):
        return


def parse_json_object(body: bytes) -> tuple[dict[str, Any], bool]:
    """One JSON object, and whether NaN or Infinity occurred in it (Python's parser lets them through).

    Raises RequestError 400 for anything else, duplicate keys included: which of the two was meant is a guess.
    """
    constants: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise _broken(f"the key {twice[:64]!r} occurs twice", param=twice[:64])
        return result

    def constant(word: str) -> float:
        constants.append(word)
        return float(word)

    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(f"invalid UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise _broken("the body is empty")
    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _broken(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _broken("it is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise _broken(str(error)) from None
    if _SURROGATE.search(text):
        data = _without_half_pairs(data)
    if not isinstance(data, dict):
        raise _broken(f"expected an object, found {type(data).__name__}")
    return data, bool(constants)


def _without_half_pairs(data: Any) -> Any:
    """Half a surrogate pair (an emoji a client cut in two) is no character: it becomes U+FFFD."""
    text = json.dumps(data, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _broken(reason: str, param: str | None = None) -> RequestError:
    return RequestError(f"The body is not a JSON object: {reason}", code="invalid_json", param=param)
