"""Completions, tokenize, detokenize: case I1."""

from __future__ import annotations

from typing import Any

import pytest
from harness import MODEL, Opens, StubServer, assert_error, parse_events
from stub_engine import say

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [(["a", "bcd"], 4), ([97, 98, 99], 3), ([[97, 98], [99]], 3), ("abc", 3), (["abc"], 3), ([97.0], 1)],
)
async def test_i1_every_form_of_prompt(server: StubServer, prompt: Any, tokens: int) -> None:
    answer = (await server.complete(prompt)).json()
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int | float) else 1
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))
    assert answer["usage"]["prompt_tokens"] == tokens
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    assert all(choice["text"] == "Hello!" for choice in answer["choices"])


@pytest.mark.parametrize(
    "prompt",
    [[-1], [10**9], [], "", [[]], [[97], []], [97, "a"], [True], [1.5], {}, 5, None, [None], ["a"] * 17],
)
async def test_i1_prompts_that_cannot_be(server: StubServer, prompt: Any) -> None:
    assert_error(await server.complete(prompt), 400, param="prompt")
    await server.alive()


async def test_i1_choices_of_several_prompts(opens: Opens) -> None:
    async with opens({"first": say("one"), "second": say("two")}) as server:
        answer = (await server.complete(["first", "second"], n=2)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["one", "one", "two", "two"]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == len("firstsecond")


@pytest.mark.parametrize("prompt", ["say: ", [115, 97, 121]])
async def test_echo(server: StubServer, prompt: Any) -> None:
    text = prompt if isinstance(prompt, str) else "say"
    whole = (await server.complete(prompt, echo=True)).json()["choices"][0]["text"]
    assert whole == text + "Hello!"
    events = parse_events((await server.complete(prompt, echo=True, stream=True)).content)
    assert events[-1] == "[DONE]"
    assert_error(await server.complete(prompt, echo=True, logprobs=0), 400, param="echo")


async def test_completions_leave_tags_alone(opens: Opens) -> None:
    text = 'a</think>b<tool_call>{"name": "f"}</tool_call>'
    async with opens({"q": say(text)}) as server:
        choice = (await server.complete("q")).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (text, "stop")


async def test_tokenize_and_back(server: StubServer) -> None:
    text = "Grüße 🧑‍🚀"
    for field in ("prompt", "content"):
        answer = (await server.client.post("/tokenize", json={field: text, "return_token_strs": True})).json()
        assert answer["tokens"] == list(text.encode())
        assert (answer["count"], answer["max_model_len"]) == (len(text.encode()), 4096)
        assert len(answer["token_strs"]) == answer["count"]
    back = await server.client.post("/detokenize", json={"tokens": answer["tokens"]})
    assert back.json() == {"prompt": text}
    bare = await server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
    assert bare.json()["tokens"] == answer["tokens"]


async def test_tokenize_counts_what_chat_counts(server: StubServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    counted = (await server.client.post("/tokenize", json={"messages": messages})).json()
    used = (await server.chat(messages=messages)).json()["usage"]
    assert counted["count"] == used["prompt_tokens"]
    assert counted["prompt"] == server.engine.prompts[-1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"), ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)  # fmt: skip
async def test_token_routes_refuse(server: StubServer, path: str, body: dict[str, Any], param: str) -> None:
    assert_error(await server.client.post(path, json=body), 400, param=param)
