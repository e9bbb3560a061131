"""Streamed text and stops: cases A1, A3, A4, A5, A7, B1, B2, B4, B5, B7, E1."""

from __future__ import annotations

import json
import random

import pytest
from harness import MODEL, Opens, StubServer, join, parse_events
from stub_engine import Script, say
from stub_model import END, GLM_TEMPLATE

from tandem.server.config import ServerConfig

pytestmark = pytest.mark.anyio

TRICKY = "🧑‍🚀 👩🏽‍💻 🇺🇦 歪 龘 한글 ไทย ß"


async def test_a1_utf8_split_across_tokens(opens: Opens) -> None:
    async with opens({"repeat": say(TRICKY)}) as server:
        joined = await server.both("repeat")
        assert joined.content == TRICKY
        assert "\ufffd" not in joined.content
        assert joined.reason == "stop"


async def test_a3_a_real_replacement_character_passes(opens: Opens) -> None:
    script = Script((b"a ", "\ufffd".encode(), b" b", b" c", b" d"))
    async with opens({"mark": script}) as server:
        joined = await server.both("mark")
        assert joined.content == "a \ufffd b c d"
        assert joined.deltas("content")[-3:] == [" b", " c", " d"]


@pytest.mark.parametrize("text", [TRICKY, "你好，世界"])
async def test_a4_token_limit_inside_a_character(opens: Opens, text: str) -> None:
    async with opens({"repeat": say(text)}) as server:
        for limit in range(1, len(text.encode())):
            joined = await server.both("repeat", max_tokens=limit)
            assert joined.reason == "length"
            assert "\ufffd" not in joined.content
            assert text.startswith(joined.content)
        await server.alive()


async def test_a5_chunk_envelope(server: StubServer) -> None:
    joined = await server.stream()
    assert joined.done
    heads = {(chunk["id"], chunk["created"], chunk["model"]) for chunk in joined.chunks}
    assert len(heads) == 1
    assert heads.pop()[2] == MODEL
    for chunk in joined.chunks:
        assert set(chunk) <= {"id", "object", "created", "model", "choices", "timings"}
        assert chunk["object"] == "chat.completion.chunk"
        assert set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"}
    assert joined.chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in joined.chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert "usage" not in joined.chunks[-1]


async def test_a7_comments_while_the_engine_or_a_tool_call_is_silent(opens: Opens) -> None:
    config = ServerConfig(keepalive_s=0.05)
    script = say("ok", prefill_delay_s=0.3)
    async with opens({"long": script}, config=config) as server:
        response = await server.chat("long", stream=True)
        assert response.text.count(": working\n\n") >= 3
        assert join(parse_events(response.content)).content == "ok"
        refused = await server.chat("long", stream=True, temperature=9)
        assert refused.status_code == 400


async def test_b1_stop_string_spans_tokens(opens: Opens) -> None:
    pieces = (b"red ", b"gr", b"een b", b"lue ", b"yellow")
    async with opens({"colours": Script(pieces)}) as server:
        joined = await server.both("colours", stop=["green blue"])
        assert (joined.content, joined.reason) == ("red ", "stop")
        other = await server.both("colours", stop=["green blues"])
        assert other.content == "red green blue yellow"


async def test_b2_nothing_after_a_stop_leaks(opens: Opens) -> None:
    baseline = "one two three four five six seven eight nine ten, eleven twelve; two three again."
    generator = random.Random(7)
    async with opens({"count": say(baseline)}) as server:
        for _ in range(20):
            start = generator.randrange(len(baseline) - 8)
            stop = baseline[start : start + generator.randint(3, 8)]
            joined = await server.both("count", stop=stop)
            assert joined.content == baseline[: baseline.index(stop)]
            assert joined.reason == "stop"


async def test_b4_stops_act_on_visible_content_only(opens: Opens) -> None:
    script = say("first thought\n\nsecond thought")
    text = Script((*script.pieces, "</think>", b"answer one\n\nanswer two"))
    async with opens({"q": text}, template=GLM_TEMPLATE) as server:
        joined = await server.both("q", stop=["\n\n"])
        assert joined.reasoning == "first thought\n\nsecond thought"
        assert joined.content == "answer one"


async def test_b5_holding_back_for_a_stop_does_not_hide_the_tag(opens: Opens) -> None:
    async with opens({"q": say("x</think>hello")}, template=GLM_TEMPLATE) as server:
        plain = await server.both("q")
        held = await server.both("q", stop=["<zzz"])
        assert (plain.reasoning, plain.content) == (held.reasoning, held.content) == ("x", "hello")


@pytest.mark.parametrize("end", [END, "<|endoftext|>", "<|user|>"])
async def test_b7_every_end_token_ends(opens: Opens, end: str) -> None:
    async with opens({"q": Script((b"fine", end, b" and more", "<|observation|>"))}) as server:
        joined = await server.both("q")
        assert (joined.content, joined.reason) == ("fine", "stop")
        longer = await server.both("q", ignore_eos=True, max_tokens=7)
        assert longer.content.startswith("fine")
        assert "<|" not in longer.content
        assert longer.reason == "length"


@pytest.mark.parametrize("wanted", [True, False, None])
async def test_e1_usage_chunk(server: StubServer, wanted: bool | None) -> None:
    options = None if wanted is None else {"include_usage": wanted}
    joined = await server.stream(stream_options=options)
    empty = [chunk for chunk in joined.chunks if not chunk["choices"]]
    assert len(empty) == (1 if wanted else 0)
    if wanted:
        assert joined.chunks[-1] == empty[0]
        assert all(chunk["usage"] is None for chunk in joined.chunks[:-1])
        whole = (await server.chat()).json()["usage"]
        for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert empty[0]["usage"][field] == whole[field]


async def test_timings_in_every_answer(server: StubServer) -> None:
    fields = {
        "queue_ms", "prompt_ms", "predicted_ms", "prompt_n", "predicted_n", "cached_n",
        "prompt_per_second", "predicted_per_second",
    }  # fmt: skip
    chat = (await server.chat()).json()
    text = (await server.complete()).json()
    chunks = (await server.stream(stream_options={"include_usage": True})).chunks
    for timings in (chat["timings"], text["timings"], chunks[-1]["timings"], chunks[-2]["timings"]):
        assert set(timings) == fields
        assert timings["predicted_n"] == 7  # six letters and the end token
        assert timings["prompt_ms"] >= 0


async def test_content_is_json_safe_for_line_readers(opens: Opens) -> None:
    """Line separators inside the JSON must not break an event apart."""
    text = "a\nb\r\nc\u2028d\u0085e\x00f"
    async with opens({"q": say(text)}) as server:
        joined = await server.both("q")
        assert joined.content == text
        raw = (await server.chat("q", stream=True)).text
        assert all(json.loads(line[6:]) for line in raw.split("\n\n") if line.startswith("data: {"))
