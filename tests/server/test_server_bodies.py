"""Broken bodies, unknown routes, model names: cases H5, H8, H9, H11, H12."""

from __future__ import annotations

import asyncio
import json

import pytest
from harness import JSON, MODEL, Opens, StubServer, assert_error

from tandem.server.config import ServerConfig

pytestmark = pytest.mark.anyio

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"   ",
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe{}",
        b'{"messages": "\xc3"}',
        b'{"n": 1, "n": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:14]),
)
async def test_h8_broken_body(server: StubServer, path: str, body: bytes) -> None:
    assert_error(await server.client.post(path, content=body, headers=JSON), 400, "invalid_json")
    await server.alive()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_h8_wrong_content_type_or_encoding(server: StubServer, headers: dict[str, str]) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert_error(await server.client.post("/v1/chat/completions", content=body, headers=headers), 415)


async def test_json_content_type_may_have_parameters(server: StubServer) -> None:
    body = json.dumps({"prompt": "hi"}).encode()
    headers = {"content-type": "application/JSON; charset=utf-8"}
    response = await server.client.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 200


async def test_half_a_surrogate_pair_is_replaced(server: StubServer) -> None:
    body = b'{"prompt": "cut \\ud83d emoji \\ud83d\\ude00", "echo": true, "max_tokens": 1}'
    response = await server.client.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 200
    assert response.json()["choices"][0]["text"].startswith("cut \ufffd emoji 😀")


@pytest.mark.parametrize("sends_length", [True, False])
async def test_h5_oversized_bodies_are_refused_and_harm_nobody(opens: Opens, sends_length: bool) -> None:
    async with opens(config=ServerConfig(max_body_bytes=100_000)) as server:
        body = b'{"messages": [{"role": "user", "content": "' + b"a" * 10_000_000 + b'"}]}'

        async def chunks():  # no content-length
            for start in range(0, len(body), 65536):
                yield body[start : start + 65536]

        def content():
            return body if sends_length else chunks()

        responses = await asyncio.gather(
            *(server.client.post("/v1/chat/completions", content=content(), headers=JSON) for _ in range(5))
        )
        for response in responses:
            assert_error(response, 413, "request_too_large")
        await server.alive()


async def test_h5_prompt_far_over_the_context(server: StubServer) -> None:
    responses = await asyncio.gather(*(server.chat("word " * 40_000) for _ in range(5)))
    for response in responses:
        assert_error(response, 400, "context_length_exceeded")
    await server.alive()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/v1/chat/completions", 404),
        ("POST", "/v1/images/generations", 404),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
async def test_h9_unknown_routes_and_methods(server: StubServer, method: str, path: str, status: int) -> None:
    response = await server.client.request(method, path, json={})
    assert_error(response, status)
    assert ("allow" in response.headers) == (status == 405)


async def test_options_and_head_answer_without_a_body(server: StubServer) -> None:
    options = await server.client.options("/v1/chat/completions")
    assert (options.status_code, options.headers["allow"], options.content) == (204, "POST", b"")
    for path in ("/health", "/", "/metrics"):
        head = await server.client.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_h11_model_names(server: StubServer, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "tokens": [65]}
    if path in {"/v1/completions", "/tokenize"}:
        del body["messages"]
    for name in (MODEL, "alias", None):
        response = await server.client.post(path, json={**body, "model": name})
        assert response.status_code == 200, response.text
        assert response.json().get("model", MODEL) == MODEL
    assert_error(
        await server.client.post(path, json={**body, "model": "gpt-4o"}), 404, "model_not_found", "model"
    )


async def test_h12_model_list(server: StubServer) -> None:
    listed = (await server.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "tandem")
    assert isinstance(model["created"], int)
    assert model["max_model_len"] == 4096
    for name in (MODEL, "alias"):
        assert (await server.client.get(f"/v1/models/{name}")).json() == model
    assert_error(await server.client.get("/v1/models/x"), 404, "model_not_found")
