"""A small client of the OpenAI-compatible API, for the commands that talk to a server."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tandem.core.errors import TandemError, UserError

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a streamed answer."""

    content: str = ""
    reasoning: str = ""


@dataclass(slots=True)
class Answer:
    """A finished answer. Times are this client's own, in milliseconds since the request was sent."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    """As the server reports them; empty for servers that do not."""
    first_piece_ms: float = 0.0
    total_ms: float = 0.0


class ApiClient:
    """Requests against one server; safe for several threads."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(
            base_url=self.base_url, headers=headers, timeout=_TIMEOUT, limits=limits, trust_env=False
        )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def model_id(self) -> str:
        """The first model the server lists. Raises UserError if nobody answers."""
        with self._explained():
            response = self._http.get("/v1/models")
        _raise_for(response)
        models = response.json().get("data") or []
        if not models:
            raise UserError(f"{self.base_url} serves no model", remedy="wait until it has loaded")
        name: str = models[0]["id"]
        return name

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One JSON request. Raises UserError (refused by the server, nobody there)."""
        with self._explained():
            response = self._http.post(path, json=body)
        _raise_for(response)
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, path: str, body: Mapping[str, Any], answer: Answer) -> Generator[Piece]:
        """Send a chat or completion request and yield its pieces, filling ``answer`` on the way.

        Closing the iterator closes the connection, which ends the generation on the server.
        """
        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        started = time.perf_counter()
        with self._explained(), self._http.stream("POST", path, json=request) as response:
            if response.status_code != 200:
                response.read()
                _raise_for(response)
            for event in _events(response):
                piece = _take(event, answer)
                elapsed_ms = (time.perf_counter() - started) * 1000
                answer.total_ms = elapsed_ms
                if piece.content or piece.reasoning:
                    answer.first_piece_ms = answer.first_piece_ms or elapsed_ms
                    yield piece

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Network failures as one line."""
        try:
            yield
        except httpx.ConnectError as error:
            raise UserError(
                f"No server answers at {self.base_url}",
                found=str(error) or "no connection",
                remedy="start one with `tandem serve`, or leave out --url",
            ) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UserError(
                f"{self.base_url} is not an address", found=str(error), remedy="--url http://127.0.0.1:8000"
            ) from error
        except httpx.HTTPError as error:
            raise TandemError(
                f"The connection to {self.base_url} broke off", found=str(error) or type(error).__name__
            ) from error


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Server-sent events until ``[DONE]``; an error event is raised."""
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        text = line[5:].strip()
        if text == "[DONE]":
            return
        event = json.loads(text)
        if "error" in event:
            raise TandemError(_error_text(event, "the answer was cut short"))
        yield event
    raise TandemError("The server ended the answer early", remedy="look at its log")


def _take(event: Mapping[str, Any], answer: Answer) -> Piece:
    answer.usage = event.get("usage") or answer.usage
    answer.timings = event.get("timings") or answer.timings
    content = reasoning = ""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        content += delta.get("content") or choice.get("text") or ""
        reasoning += delta.get("reasoning_content") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.content += content
    answer.reasoning += reasoning
    return Piece(content, reasoning)


def _raise_for(response: httpx.Response) -> None:
    if response.status_code < 400:
        return
    try:
        message = _error_text(response.json(), f"HTTP status {response.status_code}")
    except ValueError:
        message = f"{response.request.url} answered with HTTP status {response.status_code}"
    raise UserError(message, remedy="set TANDEM_API_KEY" if response.status_code == 401 else None)


def _error_text(body: Any, otherwise: str) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) and message else otherwise
