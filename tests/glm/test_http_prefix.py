"""Prefix reuse of a tiny GLM through HTTP: cases K1, K3, K4, K6 and K7. What is reused never shows in an
answer, the log probabilities of five tokens a step included; ``cache_prompt: false`` is the cold run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.api import Service

from .http_rig import WEATHER, GlmClient, client_of, open_glm, write_checkpoint

pytestmark = pytest.mark.anyio
CHUNK = 64
VOCABULARY = range(9, 1024)
"""Without control tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("reused"))


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    made = open_glm(folder, chunk_tokens=CHUNK, pool_tokens=65536)
    yield made
    made.shutdown()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[GlmClient]:
    async with client_of(service) as made:
        yield made


def words(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=count)


async def cold(client: GlmClient, prompt: list[int], **fields: Any) -> Any:
    answer = await client.complete(prompt, cache_prompt=False, **fields)
    assert cached(answer) == 0
    return answer["choices"]


def cached(answer: dict[str, Any]) -> int:
    assert answer["timings"]["cached_n"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return int(answer["timings"]["cached_n"])


async def test_k1_early_edits(client: GlmClient) -> None:
    """Twenty places, those on and beside the edges of chunks among them."""
    base = words(600, seed=1)
    await client.complete(base)
    edges = [place + beside for place in (64, 192, 384, 576) for beside in (-1, 0, 1)]
    places = [0, 1, 100, 200, 333, 450, 598, 599, *edges]
    assert len(places) == 20
    for place in places:
        edited = [*base[:place], base[place] % 1000 + 10, *base[place + 1 :]]
        answer = await client.complete(edited)
        assert answer["choices"] == await cold(client, edited), place
        assert cached(answer) == place // CHUNK * CHUNK


async def test_k1_a_changed_word_in_a_chat(client: GlmClient) -> None:
    def asked(color: str) -> dict[str, Any]:
        filler = "The harbour is quiet. " * 60
        return {"role": "user", "content": f"{filler[:200]} The code is {color}. {filler} What is the code?"}

    await client.chat(asked("RED"))
    blue = await client.chat(asked("BLUE"), logprobs=True, top_logprobs=5)
    again = await client.chat(asked("BLUE"), logprobs=True, top_logprobs=5, cache_prompt=False)
    assert blue["choices"] == again["choices"]
    before = (await client.rendered(asked("RED"))).index("RED")
    assert 0 < cached(blue) < before


async def test_k3_warm_answers_are_cold_answers(client: GlmClient) -> None:
    """Twenty prompts: cold, warm, after a follow-up, and the follow-up itself."""
    for index in range(20):
        prompt = words(1 + 33 * index, seed=100 + index)
        expected = await cold(client, prompt)
        first, second = [await client.complete(prompt) for _ in range(2)]
        follow_up = [*prompt, *words(50, seed=index)]
        continued = await client.complete(follow_up)
        after = await client.complete(prompt)
        for answer in (first, second, after):
            assert answer["choices"] == expected, index
        assert continued["choices"] == await cold(client, follow_up)
        assert cached(second) == cached(after) == (len(prompt) - 1) // CHUNK * CHUNK
        assert cached(continued) == len(prompt) // CHUNK * CHUNK


async def test_k4_six_turns_with_tools(client: GlmClient) -> None:
    """Unchanged settings always hit; a changed effort, which stands in front, costs the whole prompt once."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Tell me of the fjords. " * 130}]
    efforts = ["high", "high", "high", "low", "high", "high"]
    before = 0
    for turn, effort in enumerate(efforts):
        answer = await client.chat(*messages, reasoning_effort=effort, tools=[WEATHER])
        if effort == "low":
            assert cached(answer) == 0
        else:
            assert cached(answer) >= 0.9 * before
            before = answer["usage"]["prompt_tokens"]
        said = answer["choices"][0]["message"]
        reasoning = {"reasoning_content": said["reasoning_content"]}
        if turn % 2:
            arguments = '{"city": "Oslo", "days": 2}'
            function = {"name": "get_weather", "arguments": arguments}
            call = {"id": f"c{turn}", "type": "function", "function": function}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call], **reasoning},
                {"role": "tool", "tool_call_id": f"c{turn}", "content": "rain " * 20},
            ]
        else:
            messages += [
                {"role": "assistant", "content": said["content"], **reasoning},
                {"role": "user", "content": "And the next one? " * 5},
            ]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049])
async def test_k6_tiny_identical_and_edge_prompts(client: GlmClient, length: int) -> None:
    prompt = words(length, seed=length)
    first, second = [await client.complete(prompt) for _ in range(2)]
    assert first["choices"] == second["choices"]
    assert cached(second) == (length - 1) // CHUNK * CHUNK < length


async def test_k7_three_times_the_pool_and_two_that_exceed_it(folder: Path) -> None:
    service = open_glm(folder, chunk_tokens=CHUNK, context_tokens=1024, pool_tokens=1024)
    try:
        async with client_of(service) as client:
            prompts = [words(500, seed=200 + index) for index in range(7)]
            expected = [await cold(client, prompt) for prompt in prompts]
            for prompt, right in [*zip(prompts, expected, strict=True), (prompts[0], expected[0])]:
                assert (await client.complete(prompt))["choices"] == right
            large = [words(900, seed=300 + index) for index in range(2)]
            expected = [await cold(client, prompt, max_tokens=100) for prompt in large]
            both = await asyncio.gather(*(client.complete(prompt, max_tokens=100) for prompt in large))
            assert [answer["choices"] for answer in both] == expected
        stats = service.stats()
        assert stats.free_pages + stats.cached_pages == 1024 // CHUNK
    finally:
        service.shutdown()
