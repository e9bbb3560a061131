"""A running stub server for tests: real app, real scheduler, real text; a scripted engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import stub_model
from stub_engine import LIMITS, Script, ScriptedEngine

from tandem.api import ModelCard, Service
from tandem.core.batch import EngineLimits
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.loop import Scheduler
from tandem.server.app import create_app
from tandem.server.config import ServerConfig

Opens = Callable[..., AbstractAsyncContextManager["StubServer"]]
MODEL = "stub/model"
JSON = {"content-type": "application/json"}


@dataclass
class StubServer:
    client: httpx.AsyncClient
    service: Service
    engine: ScriptedEngine

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0} | fields
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "hi", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0} | fields
        return await self.client.post("/v1/completions", json=body)

    async def choice(self, text: str = "hi", **fields: Any) -> dict[str, Any]:
        """The first choice of an answer that is not streamed."""
        response = await self.chat(text, **fields)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    async def stream(self, text: str = "hi", **fields: Any) -> Joined:
        response = await self.chat(text, **fields, stream=True)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return join(parse_events(response.content))

    async def both(self, text: str = "hi", **fields: Any) -> Joined:
        """Asks in both modes, checks that they agree, and returns the stream."""
        whole = await self.choice(text, **fields)
        joined = await self.stream(text, **fields)
        message = whole["message"]
        assert joined.content == (message["content"] or "")
        assert joined.reasoning == message.get("reasoning_content", "")
        assert joined.reason == whole["finish_reason"]
        assert [call["function"] for call in joined.calls] == [
            call["function"] for call in message.get("tool_calls", [])
        ]
        return joined

    async def alive(self) -> None:
        assert (await self.client.get("/health")).status_code == 200
        assert (await self.chat("hi", max_tokens=1)).status_code == 200


@dataclass
class Joined:
    """One choice of a stream, put together as a client does."""

    chunks: list[dict[str, Any]]
    content: str
    reasoning: str
    calls: list[dict[str, Any]]
    reason: str | None
    done: bool
    error: dict[str, Any] | None

    def deltas(self, field: str) -> list[Any]:
        found = [chunk["choices"][0]["delta"].get(field) for chunk in self.chunks if chunk["choices"]]
        return [value for value in found if value]


def assert_error(
    response: httpx.Response, status: int, code: str | None = None, param: str | None = None
) -> None:
    """ERR(status, code): the OpenAI envelope, and nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert "Traceback" not in response.text
    if code is not None:
        assert error["code"] == code
    if param is not None:
        assert error["param"] == param


def parse_events(raw: bytes) -> list[str]:
    """The data of every event; each line must be valid UTF-8, a comment or data."""
    text = raw.decode("utf-8")
    assert text.endswith("\n\n")
    data = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block
        if block.startswith(":"):
            continue
        assert block.startswith("data: ")
        data.append(block.removeprefix("data: "))
    return data


def join(events: list[str]) -> Joined:
    done = events[-1:] == ["[DONE]"]
    chunks = [json.loads(event) for event in (events[:-1] if done else events)]
    error = chunks.pop()["error"] if chunks and "error" in chunks[-1] else None
    result = Joined(chunks, "", "", [], None, done, error)
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            result.content += delta.get("content") or ""
            result.reasoning += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls", []):
                if part["index"] not in calls:
                    assert part["id"]
                    assert part["type"] == "function"
                    assert part["function"]["name"]
                    calls[part["index"]] = {"id": part["id"], "function": {**part["function"]}}
                    continue
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
            result.reason = choice["finish_reason"] or result.reason
    result.calls = [calls[index] for index in sorted(calls)]
    return result


def make_service(
    folder: Path,
    scripts: Mapping[str, Script],
    template: str = stub_model.PLAIN_TEMPLATE,
    limits: EngineLimits = LIMITS,
    scheduling: SchedulerConfig | None = None,
) -> tuple[Service, ScriptedEngine]:
    pieces = [piece for script in scripts.values() for piece in script.pieces if isinstance(piece, bytes)]
    text = stub_model.make_bundle(folder, template, [piece for piece in pieces if len(piece) <= 12])
    engine = ScriptedEngine(text, {"": Script((b"Hello!",)), **scripts}, limits)
    service = Service(MODEL)
    card = ModelCard(MODEL, 1_700_000_000, limits.context_tokens, aliases=("alias",))
    service.attach(card, text, Scheduler(engine, scheduling or SchedulerConfig()))
    return service, engine


@contextlib.asynccontextmanager
async def stub_server(
    folder: Path,
    scripts: Mapping[str, Script],
    *,
    config: ServerConfig | None = None,
    **options: Any,
) -> AsyncIterator[StubServer]:
    """In-process: httpx talks to the ASGI application directly."""
    service, engine = make_service(folder, scripts, **options)
    app = create_app(service, config or ServerConfig())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
    ):
        yield StubServer(client, service, engine)
    service.shutdown()
