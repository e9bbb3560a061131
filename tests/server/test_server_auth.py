"""Keys, CORS, Host: cases P1, P3, P4, P5."""

from __future__ import annotations

import logging

import httpx
import pytest
from harness import Opens, assert_error

from tandem.core.errors import ServeError
from tandem.server.config import ServerConfig

pytestmark = pytest.mark.anyio

KEYS = ("first-key-12345", "zweiter-schlüssel")
GOOD = [
    {"authorization": f"Bearer {KEYS[0]}"},
    {"authorization": f"bearer {KEYS[0]}"},
    {"authorization": f"BEARER  {KEYS[0]} "},
    {"x-api-key": KEYS[0]},
    {"authorization": f"Bearer {KEYS[1]}".encode()},
]
BAD = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer "},
    {"authorization": KEYS[0]},
    {"authorization": f"Basic {KEYS[0]}"},
    {"authorization": f"Bearer {KEYS[0][:-1]}"},
    {"authorization": f"Bearer {KEYS[0]} {KEYS[0]}"},
    {"x-api-key": "wrong"},
    {"authorization": b"Bearer \xff\xfe"},
]


async def test_p1_keys(opens: Opens, caplog: pytest.LogCaptureFixture) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    with caplog.at_level(logging.DEBUG):
        async with opens(config=ServerConfig(api_keys=KEYS)) as server:
            for headers in GOOD:
                response = await server.client.post("/v1/chat/completions", json=body, headers=headers)
                assert response.status_code == 200, headers
                assert (await server.client.get("/v1/models", headers=headers)).status_code == 200
            for headers in BAD:
                for method, path in (
                    ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics"),
                    ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/tokenize"),
                ):  # fmt: skip
                    response = await server.client.request(method, path, headers=headers)
                    assert_error(response, 401, "invalid_api_key")
                    assert response.headers["www-authenticate"] == "Bearer"
            for path in ("/health", "/", "/static/status.js"):
                assert (await server.client.get(path)).status_code == 200
            shown = [(await server.client.get(path)).text for path in ("/health", "/")]
    assert not any(key in text for key in KEYS for text in (caplog.text, *shown))


async def test_a_key_is_checked_before_the_body_is_read(opens: Opens) -> None:
    async with opens(config=ServerConfig(api_keys=KEYS)) as server:
        response = await server.client.post("/v1/chat/completions", content=b"{" * 100)
        assert_error(response, 401)


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }


async def test_p3_allowed_origin(opens: Opens) -> None:
    origin = "http://localhost:5173"
    config = ServerConfig(api_keys=KEYS, cors_origins=(origin,))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with opens(config=config) as server:
        asked = await server.client.options("/v1/chat/completions", headers=preflight(origin))
        assert asked.status_code in {200, 204}
        assert asked.headers["access-control-allow-origin"] == origin
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        headers = {"origin": origin, **GOOD[0]}
        answers = [
            await server.client.get("/v1/models", headers=headers),
            await server.client.get("/v1/models", headers={"origin": origin}),
            await server.client.post("/v1/chat/completions", json={**body, "stream": True}, headers=headers),
            await server.client.post("/v1/chat/completions", json={}, headers=headers),
        ]
        assert [answer.status_code for answer in answers] == [200, 401, 200, 400]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == origin
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origins", [(), ("http://localhost:5173",), ("*",)])
async def test_p4_unknown_origin_is_never_reflected_with_credentials(
    opens: Opens, origins: tuple[str, ...]
) -> None:
    evil = "https://evil.example"
    async with opens(config=ServerConfig(cors_origins=origins)) as server:
        headers = {"origin": evil, "cookie": "session=1"}
        for answer in (
            await server.client.options("/v1/chat/completions", headers=preflight(evil)),
            await server.client.get("/v1/models", headers=headers),
            await server.client.post("/v1/completions", json={"prompt": "hi"}, headers=headers),
        ):
            allowed = answer.headers.get("access-control-allow-origin")
            assert allowed == ("*" if origins == ("*",) else None)
            assert "access-control-allow-credentials" not in answer.headers


async def test_p4_no_get_changes_anything(opens: Opens) -> None:
    async with opens() as server:
        document = (await server.client.get("/openapi.json")).json()
        gets = {path for path, methods in document["paths"].items() if "get" in methods}
        assert gets == {"/health", "/metrics", "/v1/models", "/v1/models/{model_id}"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("192.168.1.5", 200),
        ("LOCALHOST", 200), ("app.localhost", 200), ("evil.example:8000", 403),
        ("localhost.evil.example", 403), ("proxy.example", 200),
    ],
)  # fmt: skip
async def test_dns_rebinding_is_refused_on_loopback(opens: Opens, host: str, status: int) -> None:
    async with opens(config=ServerConfig(allowed_hosts=("proxy.example",))) as server:
        answer = await server.client.get("/v1/models", headers={"host": host})
        assert answer.status_code == status
        if status == 403:
            assert_error(answer, 403, "host_not_allowed")


@pytest.mark.parametrize("config", [ServerConfig(api_keys=KEYS), ServerConfig(host="0.0.0.0", insecure=True)])
async def test_any_host_name_with_a_key_or_beyond_loopback(opens: Opens, config: ServerConfig) -> None:
    async with opens(config=config) as server:
        headers: dict[str, str] = {"host": "model.example"}
        answer: httpx.Response = await server.client.get("/health", headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "model.example"])
def test_p5_open_bind_needs_a_key_or_a_word(host: str) -> None:
    with pytest.raises(ServeError, match="no API key"):
        ServerConfig(host=host).check()
    ServerConfig(host=host, api_keys=("k",)).check()
    ServerConfig(host=host, insecure=True).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_p5_loopback_needs_nothing(host: str) -> None:
    ServerConfig(host=host).check()
    assert ServerConfig().host == "127.0.0.1"


@pytest.mark.parametrize(
    "fields", [{"port": 65536}, {"keepalive_s": 16}, {"keepalive_s": 0}, {"max_body_bytes": 1}]
)
def test_settings_out_of_range(fields: dict[str, int]) -> None:
    with pytest.raises(ServeError):
        ServerConfig(**fields).check()  # type: ignore[arg-type]
