"""Over real sockets: cases A7, J1, J4, J5, J6, a client that does not read, and faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from harness import MODEL, Opens, assert_error, join, make_service, parse_events
from stub_engine import LIMITS, Script, say

from tandem.api import LoadState, Service
from tandem.core.errors import ServeError
from tandem.scheduler.config import SchedulerConfig
from tandem.server.app import create_app
from tandem.server.config import ServerConfig
from tandem.server.run import bind, server_url

pytestmark = pytest.mark.anyio
FREE_PORT = ServerConfig(port=0)


@contextlib.asynccontextmanager
async def listening(service: Service, config: ServerConfig = FREE_PORT) -> AsyncIterator[httpx.AsyncClient]:
    """A real uvicorn on a free loopback port."""
    listener = bind(config)
    server = uvicorn.Server(
        uvicorn.Config(create_app(service, config), log_config=None, timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=server_url(listener), timeout=30) as client:
        yield client
    server.should_exit = True
    await task
    service.shutdown()


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def enter(client: httpx.AsyncClient, service: Service, body: dict[str, Any]) -> asyncio.Task[Any]:
    """Send a request and wait until the scheduler has it (or it was answered): the order is then certain."""
    stats = service.stats()
    inside = stats.running + stats.waiting
    call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    await until(lambda: call.done() or service.stats().running + service.stats().waiting > inside)
    return call


ENDLESS = say("endless words ", repeats=True, ends=False, token_delay_s=0.002)


async def test_j1_disconnect_frees_everything(tmp_path: Path) -> None:
    service, _ = make_service(tmp_path, {"story": ENDLESS})
    async with listening(service) as client:
        for index in range(50):
            body = chat_body(f"story {index % 3}", stream=True, max_tokens=3000, n=1 + index % 2)
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                events = 0
                async for line in response.aiter_lines():
                    events += line.startswith("data:")
                    if events == 3:
                        break
        await until(lambda: service.stats().running == service.stats().waiting == 0)
        stats = service.stats()
        assert stats.live_pages == 0
        assert stats.free_pages + stats.cached_pages == stats.total_pages
        answer = await client.post("/v1/chat/completions", json=chat_body("hi"))
        assert answer.json()["choices"][0]["message"]["content"] == "Hello!"


async def test_j1_disconnect_without_streaming_and_while_waiting(tmp_path: Path) -> None:
    service, _ = make_service(tmp_path, {"story": ENDLESS}, limits=replace(LIMITS, max_slots=1))
    async with listening(service) as client:
        for _ in range(2):
            calls = [
                asyncio.create_task(
                    client.post(
                        "/v1/chat/completions", json=chat_body("story", max_tokens=3000, stream=stream)
                    )
                )
                for stream in (False, False, True)
            ]
            await until(lambda: service.stats().running == 1 and service.stats().waiting == 2)
            for call in calls:
                call.cancel()
            await until(lambda: service.stats().running == service.stats().waiting == 0)
        assert service.stats().live_pages == 0


async def test_j4_queue_limit(tmp_path: Path) -> None:
    service, engine = make_service(
        tmp_path,
        {"slow": say("words", stall_at=1)},
        limits=replace(LIMITS, max_slots=1),
        scheduling=SchedulerConfig(max_waiting=2),
    )
    async with listening(service) as client:
        bodies = [chat_body(f"slow {index}", stream=index % 2 == 0) for index in range(10)]
        calls = [await enter(client, service, body) for body in bodies]
        engine.release.set()
        answers = [await call for call in calls]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 7
        for answer in answers[3:]:
            assert_error(answer, 429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
        order = [prompt[prompt.index("slow") :][:6] for prompt in engine.prompts]
        assert order == ["slow 0", "slow 1", "slow 2"]


@pytest.mark.parametrize("stream", [True, False])
async def test_j4_wait_limit_and_visible_position(tmp_path: Path, stream: bool) -> None:
    service, _ = make_service(
        tmp_path,
        {"story": ENDLESS},
        limits=replace(LIMITS, max_slots=1),
        scheduling=SchedulerConfig(max_wait_s=0.4),
    )
    async with listening(service, ServerConfig(port=0, keepalive_s=0.1)) as client:
        first = asyncio.create_task(
            client.post("/v1/chat/completions", json=chat_body("story", max_tokens=1000))
        )
        await until(lambda: service.stats().running == 1)
        waiting = asyncio.create_task(
            client.post("/v1/chat/completions", json=chat_body("story", stream=stream))
        )
        await until(lambda: service.stats().waiting == 1)
        assert (await client.get("/health")).json()["waiting"] == 1
        expired = await waiting
        if stream:  # its headers had left with the first comment
            assert ": queued 0\n\n" in expired.text
            assert join(parse_events(expired.content)).error["code"] == "queue_full"
        else:
            assert_error(expired, 429, "queue_full")
        first.cancel()


async def test_j5_health_while_loading(tmp_path: Path) -> None:
    service = Service(MODEL)
    service.report(LoadState("loading", 0.25, "reading weights"))
    async with listening(service) as client:
        await until_listening(client)
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.headers["retry-after"]
        report = health.json()
        assert (report["status"], report["progress"]) == ("loading", 0.25)
        assert report["detail"] == "reading weights"
        for path, body in (
            ("/v1/chat/completions", chat_body("hi")),
            ("/v1/chat/completions", chat_body("hi", stream=True)),
            ("/v1/completions", {"prompt": "hi"}),
            ("/tokenize", {"prompt": "hi"}),
        ):
            refused = await client.post(path, json=body)
            assert_error(refused, 503, "not_ready")
            assert int(refused.headers["retry-after"]) >= 1
        assert_error(await client.get("/v1/models"), 503)
        assert (await client.get("/metrics")).status_code == 200
        assert "25%" in (await client.get("/")).text or "loading" in (await client.get("/")).text
        other, _ = make_service(tmp_path, {})
        service.attach(other.card, other.text, other.scheduler)
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat_body("hi"))).status_code == 200


async def until_listening(client: httpx.AsyncClient) -> None:
    for _ in range(100):
        with contextlib.suppress(httpx.ConnectError):
            await client.get("/health")
            return
        await asyncio.sleep(0.02)


async def test_j5_a_failed_load_tells_why() -> None:
    service = Service(MODEL)
    service.report(LoadState("failed", 0.4, "shard 3 is missing"))
    async with listening(service) as client:
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["detail"] == "shard 3 is missing"
        refused = await client.post("/v1/chat/completions", json=chat_body("hi"))
        assert_error(refused, 503)
        assert "shard 3" in refused.json()["error"]["message"]


async def test_j6_engine_fault_ends_everybody_and_turns_health(tmp_path: Path) -> None:
    service, engine = make_service(
        tmp_path,
        {"story": ENDLESS, "break": say("abc", stall_at=2, engine_fault_at=2)},
        limits=replace(LIMITS, max_slots=2),
    )
    async with listening(service) as client:
        texts = (("story", True), ("break", False), ("story", False), ("story", True))
        calls = [await enter(client, service, chat_body(text, stream=stream)) for text, stream in texts]
        engine.release.set()
        answers = await asyncio.gather(*calls)
        for answer in answers:
            error = (
                answer.json()["error"]
                if answer.status_code >= 500
                else join(parse_events(answer.content)).error
            )
            assert error["type"] == "server_error"
            assert "[DONE]" not in answer.text
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed"
        assert "broke" in health.json()["detail"]
        assert_error(await client.post("/v1/chat/completions", json=chat_body("hi")), 503)


async def test_j6_a_stuck_engine_turns_health_and_ends_waiters(tmp_path: Path) -> None:
    service, engine = make_service(
        tmp_path, {"hang": say("abc", stall_at=1)}, limits=replace(LIMITS, max_slots=1)
    )
    async with listening(service, ServerConfig(port=0, stall_timeout_s=1)) as client:
        bodies = [chat_body("hang", stream=True), chat_body("hang"), chat_body("hi", stream=True)]
        calls = [await enter(client, service, body) for body in bodies]
        answers = await asyncio.gather(*calls)
        errors = [
            answer.json()["error"] if answer.status_code == 503 else join(parse_events(answer.content)).error
            for answer in answers
        ]
        assert all("stalled" in error["message"] for error in errors)
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "stalled"
        engine.release.set()
        await until(lambda: service.stats().running == 0)
        assert (await client.get("/health")).status_code == 200


async def test_one_sequence_fault_leaves_others_alone(opens: Opens) -> None:
    scripts = {"bad": say("abc", slot_fault_at=2), "good": say("fine words", token_delay_s=0.005)}
    async with opens(scripts) as server:
        good = [asyncio.create_task(server.stream("good")) for _ in range(2)]
        bad = await server.chat("bad")
        assert_error(bad, 500)
        assert "finite" in bad.json()["error"]["message"]
        streamed = await server.stream("bad")
        assert streamed.error is not None
        assert streamed.content == "ab"
        assert not streamed.done
        assert [(await task).content for task in good] == ["fine words"] * 2
        await server.alive()


async def test_a_request_that_allows_no_token_is_its_own_mistake(opens: Opens) -> None:
    scripts = {"at once": say("abc", impossible_at=0), "later": say("abc", impossible_at=2)}
    async with opens(scripts) as server:
        refusals = [
            await server.chat("at once"),
            await server.chat("at once", stream=True),  # before anything was sent
            await server.chat("later"),
        ]
        for refused in refusals:
            assert_error(refused, 400)
            assert refused.json()["error"]["type"] == "invalid_request_error"
            assert "No token is left" in refused.json()["error"]["message"]
        streamed = await server.stream("later")
        assert streamed.error is not None
        assert streamed.error["type"] == "invalid_request_error"
        assert streamed.content == "ab"
        assert not streamed.done
        await server.alive()


async def test_a_client_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    flood = Script((b"0123456789ab",), repeats=True, ends=False)
    service, _ = make_service(tmp_path, {"flood": flood})
    async with listening(service) as client:
        body = json.dumps(chat_body("flood", stream=True, max_tokens=3500)).encode()
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((client.base_url.host, client.base_url.port))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: service.stats().running == 1)
        for _ in range(3):
            answer = await client.post("/v1/chat/completions", json=chat_body("hi"))
            assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
        deaf.close()
        await until(lambda: service.stats().running == 0, timeout_s=20)


async def test_h5_a_large_body_is_refused_while_it_is_sent(tmp_path: Path) -> None:
    service, _ = make_service(tmp_path, {})
    async with listening(service, ServerConfig(port=0, max_body_bytes=100_000)) as client:
        body = json.dumps(chat_body("x" * 20_000_000)).encode()
        headers = {"content-type": "application/json"}
        for _ in range(3):
            assert_error(
                await client.post("/v1/chat/completions", content=body, headers=headers),
                413,
                "request_too_large",
            )
        asked = {**headers, "expect": "100-continue", "content-length": "50000000"}
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": "localhost", **asked}.items())
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{lines}\r\n".encode())
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_a_port_in_use_is_one_clear_error() -> None:
    with bind(FREE_PORT) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServeError, match="the port is in use; try: --port"):
            bind(ServerConfig(port=port))
    with pytest.raises(ServeError):
        bind(ServerConfig(host="no-such-host.invalid", insecure=True))
    with pytest.raises(ServeError):
        bind(ServerConfig(host="192.0.2.1", insecure=True))
