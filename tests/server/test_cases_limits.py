"""Limits, usage, sampling, logprobs: cases E3, E6, F1-F5, H1, H2, H4, K6, P6 and n."""

from __future__ import annotations

import re
from typing import Any

import pytest
from harness import Opens, StubServer, assert_error, join, parse_events
from stub_engine import Script, say

pytestmark = pytest.mark.anyio

TRICKY = "🧑‍🚀 歪 ß."


async def test_e3_the_newer_limit_wins(opens: Opens) -> None:
    async with opens({"count": say("one two three four five six")}) as server:
        for fields, tokens in (
            ({"max_completion_tokens": 5}, 5),
            ({"max_completion_tokens": 1, "max_tokens": 32}, 1),
            ({"max_completion_tokens": 7, "max_tokens": 2}, 7),
            ({"max_tokens": 3}, 3),
        ):
            answer = (await server.chat("count", **fields)).json()
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length"


async def test_e6_cached_tokens(server: StubServer) -> None:
    prompt = "A long prompt about nothing. " * 40
    first = (await server.chat(prompt)).json()
    second = (await server.chat(prompt)).json()
    streamed = (await server.stream(prompt, stream_options={"include_usage": True})).chunks[-1]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for answer in (second, streamed):
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert 0 < cached < answer["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
        assert answer["timings"]["cached_n"] == cached
        assert answer["timings"]["prompt_n"] == answer["usage"]["prompt_tokens"] - cached
    fresh = (await server.chat(prompt, cache_prompt=False)).json()
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("count", [0, 3, 20, None])
async def test_f1_chat_logprobs(opens: Opens, count: int | None) -> None:
    async with opens({"q": say(TRICKY)}) as server:
        answer = (await server.chat("q", logprobs=True, top_logprobs=count)).json()
        entries = answer["choices"][0]["logprobs"]["content"]
        streamed = await server.stream("q", logprobs=True, top_logprobs=count)
        joined = [
            entry
            for chunk in streamed.chunks
            for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert joined == entries  # F3: complete in streams, held-back text or not
        for entry in entries:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            assert entry["logprob"] <= 0
            assert len(entry["top_logprobs"]) == (count or 0)
            if count:
                assert entry["token"] in {top["token"] for top in entry["top_logprobs"]}
        raw = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert raw.decode() == TRICKY
        assert len(entries) == answer["usage"]["completion_tokens"] - 1  # all but the end token


async def test_no_logprobs_unless_asked(server: StubServer) -> None:
    assert (await server.choice())["logprobs"] is None
    assert (await server.choice(logprobs=False, top_logprobs=None))["logprobs"] is None


async def test_f2_completions_logprobs(opens: Opens) -> None:
    async with opens({"2+2=": say(TRICKY)}) as server:
        whole = (await server.complete("2+2=", logprobs=2)).json()["choices"][0]
        response = await server.complete("2+2=", logprobs=2, stream=True)
        events = [chunk for chunk in map(_json, parse_events(response.content)) if chunk]
        shape = {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        joined: dict[str, list[Any]] = {name: [] for name in shape}
        for chunk in events:
            for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
                joined[name] += values
        assert joined == whole["logprobs"]
        assert set(whole["logprobs"]) == shape
        assert len({len(values) for values in joined.values()}) == 1
        assert len(joined["tokens"]) >= len(TRICKY.encode())
        assert all(len(top) in {2, 3} for top in joined["top_logprobs"])
        assert joined["text_offset"] == sorted(joined["text_offset"])
        assert joined["tokens"][0] == "bytes:\\xf0"
        last = len(TRICKY.encode()) - 1
        assert (joined["tokens"][last], joined["text_offset"][last]) == (".", len(TRICKY) - 1)


def _json(event: str) -> Any:
    import json

    return None if event == "[DONE]" else json.loads(event)


async def test_f4_banned_token_is_absent(opens: Opens) -> None:
    async with opens({"q": say("banana")}) as server:
        assert "a" not in (await server.choice("q", logit_bias={"97": -100}))["message"]["content"]


async def test_f5_seeds(opens: Opens) -> None:
    async with opens({"q": Script(noise=24, token_delay_s=0.001)}) as server:

        async def text(**fields: Any) -> str:
            return (await server.choice("q", temperature=0.8, **fields))["message"]["content"]

        seeded = {await text(seed=42) for _ in range(3)}
        assert len(seeded) == 1
        assert await text(seed=43) not in seeded
        assert len({await text() for _ in range(5)}) > 1
        many = (await server.chat("q", temperature=0.8, seed=42, n=3)).json()["choices"]
        texts = [choice["message"]["content"] for choice in many]
        assert texts[0] in seeded
        assert len(set(texts)) == 3
        assert await text(seed=-5) == await text(seed=-5)


@pytest.mark.parametrize("stream", [True, False])
async def test_h1_context_overflow(server: StubServer, stream: bool) -> None:
    response = await server.chat("x" * 5000, stream=stream)
    assert_error(response, 400, "context_length_exceeded", "messages")
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert re.search(r"\b4096\b", error["message"])
    count = (
        await server.client.post("/tokenize", json={"messages": [{"role": "user", "content": "x" * 5000}]})
    ).json()
    assert str(count["count"]) in error["message"]
    assert_error(await server.complete("x" * 5000, stream=stream), 400, "context_length_exceeded", "prompt")


async def test_h2_near_the_context_nothing_is_cut(server: StubServer) -> None:
    text = "needle " + "x" * 3900
    counted = (await server.client.post("/tokenize", json={"prompt": text})).json()
    answer = (await server.complete(text)).json()
    assert answer["usage"]["prompt_tokens"] == counted["count"] == len(text)
    assert server.engine.prompts[-1] == text


async def test_h4_exact_boundary(server: StubServer) -> None:
    for length, status in ((4094, 200), (4095, 200), (4096, 400), (4097, 400)):
        response = await server.complete("x" * length, max_tokens=1)
        assert response.status_code == status, length
        await server.alive()
    longest = (await server.complete("x" * 4090, max_tokens=100)).json()
    assert longest["usage"]["total_tokens"] <= 4096
    assert longest["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129])
async def test_k6_tiny_and_page_edge_prompts_twice(server: StubServer, length: int) -> None:
    answers = [(await server.complete("x" * length)).json() for _ in range(2)]
    assert answers[0]["choices"] == answers[1]["choices"]
    for answer in answers:
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] < length


async def test_n_choices(opens: Opens) -> None:
    async with opens({"q": Script(noise=6)}) as server:
        answer = (await server.chat("q", n=6, temperature=1, seed=1)).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert answer["usage"]["completion_tokens"] == 6 * 7
        alone = (await server.chat("q", temperature=1, seed=1)).json()
        assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        streamed = await server.chat("q", n=6, temperature=1, seed=1, stream=True)
        chunks = join(parse_events(streamed.content)).chunks
        for choice in answer["choices"]:
            mine = [
                chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]
            ]
            assert "".join(part["delta"].get("content", "") for part in mine) == choice["message"]["content"]
            assert [part["finish_reason"] for part in mine if part["finish_reason"]] == ["stop"]
        assert [chunk for chunk in chunks if "timings" in chunk] == [chunks[-1]]


def samples(text: str) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    }


async def test_p6_metrics_equal_summed_usage(opens: Opens) -> None:
    async with opens({"q": say("some words to say", token_delay_s=0.001)}) as server:
        before = samples((await server.client.get("/metrics")).text)
        used = {"prompt_tokens": 0, "completion_tokens": 0}
        for index in range(10):
            fields = {"n": 2} if index == 4 else {"max_tokens": 3} if index % 3 == 0 else {}
            usage = (await server.chat("q " * 40, **fields)).json()["usage"]
            used = {name: used[name] + usage[name] for name in used}
        await server.chat(temperature=9)
        response = await server.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        after = samples(response.text)
        for name, counted in (("prompt", "prompt_tokens"), ("generation", "completion_tokens")):
            series = f"tandem:{name}_tokens_total"
            assert after[series] - before[series] == used[counted]
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert after[f"tandem:{gauge}"] == 0
        assert after["tandem:prefix_cache_queries_total"] > after["tandem:prefix_cache_hits_total"] > 0
        assert after['tandem:request_errors_total{code="invalid_value"}'] == 1
        assert after["tandem:time_to_first_token_seconds_count"] == 11
        assert after["tandem:e2e_request_latency_seconds_count"] == 10
        assert after["tandem:inter_token_latency_seconds_count"] > 0
        assert after["tandem:request_queue_time_seconds_count"] == 11
        pages = [after[f'tandem:kv_cache_pages{{state="{state}"}}'] for state in ("free", "cached", "live")]
        assert sum(pages) == server.engine.limits.total_pages
        assert all(after[name] >= value for name, value in before.items() if name.endswith("_total"))
