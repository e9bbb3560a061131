"""A tiny random GLM in safetensors behind the real server: cases of sections C, D and G that need no scripted
answer. Random weights talk at random; grammars, budgets and limits hold all the same, and prompts are shown
by the server. What a model must say to show a case is scripted in tests/server, in GLM's format too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tandem.api import Service

from .http_rig import TIME, USER, WEATHER, GlmClient, chunks, client_of, join, open_glm, write_checkpoint

pytestmark = pytest.mark.anyio
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ARTICLE = {
    "type": "function",
    "function": {
        "name": "write_article",
        "parameters": {
            "type": "object",
            "properties": {"content": {"type": "string", "minLength": 400}},
            "required": ["content"],
        },
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = open_glm(write_checkpoint(tmp_path_factory.mktemp("cases")))
    yield made
    made.shutdown()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[GlmClient]:
    async with client_of(service) as made:
        yield made


async def test_c1_a_call_without_arguments(client: GlmClient) -> None:
    answer = await client.both(
        USER,
        tools=[TIME],
        tool_choice="required",
        thinking_budget=3,
        max_tokens=60,
        parallel_tool_calls=False,
    )
    assert [call["function"] for call in answer.calls] == [{"name": "get_time", "arguments": "{}"}]
    assert answer.finish == "tool_calls"


async def test_c4_ids_over_two_tool_turns(client: GlmClient) -> None:
    ids: list[str] = []
    for stream in (True, False):
        messages: list[dict[str, Any]] = [USER]
        for _ in range(2):
            (answer,) = await client.answers(
                *messages, stream=stream, tools=[WEATHER], tool_choice="required", thinking_budget=3,
                max_tokens=200, parallel_tool_calls=False, temperature=1, seed=len(ids),
            )  # fmt: skip
            (call,) = answer.calls
            ids.append(call["id"])
            messages.append(
                {"role": "assistant", "content": None, "tool_calls": [{**call, "type": "function"}]}
            )
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "rain"})
    assert all(ids)
    assert len(set(ids)) == 4


async def test_c8_a_call_cut_by_the_limit(client: GlmClient) -> None:
    answer = await client.both(
        USER, tools=[ARTICLE], tool_choice="required", thinking_budget=3, max_tokens=60
    )
    assert answer.finish == "length"
    assert "<" not in answer.content
    for call in answer.calls:
        with pytest.raises(json.JSONDecodeError):
            json.loads(call["function"]["arguments"])


async def test_c11_a_named_tool_in_both_modes(client: GlmClient) -> None:
    answer = await client.both(
        USER,
        tools=[TIME, WEATHER],
        tool_choice=NAMED,
        thinking_budget=3,
        max_tokens=200,
        parallel_tool_calls=False,
    )
    (call,) = answer.calls
    assert call["function"]["name"] == "get_weather"
    assert answer.arguments[0]["city"] in {"Oslo", "Lima"}
    assert answer.arguments[0]["days"] in {1, 2, 3}
    assert answer.finish == "tool_calls"


async def test_c12_required_twenty_times_at_temperature_1(client: GlmClient) -> None:
    for stream in (True, False):
        answers = await client.answers(
            {"role": "user", "content": "Good morning!"}, stream=stream, n=10, temperature=1, seed=7,
            tools=[WEATHER], tool_choice="required", thinking_budget=3, max_tokens=200,
            parallel_tool_calls=False,
        )  # fmt: skip
        assert len(answers) == 10
        for answer in answers:
            assert (answer.finish, len(answer.calls)) == ("tool_calls", 1)
            assert set(answer.arguments[0]) == {"city", "days"}


async def test_c13_none_ten_times(client: GlmClient) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "none"}
    answers = await client.answers(
        USER, stream=True, n=10, temperature=1, seed=3, thinking_budget=3, max_tokens=40, **fields
    )
    for answer in answers:
        assert not answer.calls
        assert "<tool_call>" not in answer.content
        assert answer.finish in {"stop", "length"}
    assert "get_weather" not in await client.rendered(USER, **fields)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"},
                                    {"tool_choice": "required"}])  # fmt: skip
async def test_c14_empty_or_absent_tools(client: GlmClient, choice: dict[str, str], stream: bool) -> None:
    for tools in ({}, {"tools": []}, {"tools": None}):
        response = await client.send(**tools, **choice, stream=stream, max_tokens=2)
        assert response.status_code == (400 if choice.get("tool_choice") == "required" else 200)
        if response.status_code == 400:
            assert response.headers["content-type"] == "application/json"
            assert response.json()["error"]["param"] == "tool_choice"


async def test_c15_the_name_first_then_many_pieces(client: GlmClient) -> None:
    choice = {"type": "function", "function": {"name": "write_article"}}
    response = await client.send(
        tools=[ARTICLE, TIME], temperature=1, seed=5, thinking_budget=3, max_tokens=300, stream=True,
        tool_choice=choice,
    )  # fmt: skip
    found = chunks(response.text)
    with_calls = [i for i, chunk in enumerate(found) if chunk["choices"][0]["delta"].get("tool_calls")]
    assert with_calls[0] <= len(found) / 5
    assert len(with_calls) >= 6
    (answer,) = join(found)
    assert answer.calls[0]["function"]["name"] == "write_article"


@pytest.mark.parametrize("given", [None, "", "{}", {}, "not json"])
async def test_c16_arguments_in_the_history(client: GlmClient, given: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": given}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    response = await client.send(USER, said, RESULT, tools=[TIME], max_tokens=1)
    assert response.status_code == (400 if given == "not json" else 200)
    if given == "not json":
        assert response.json()["error"]["param"].startswith("messages[1]")
    else:
        empty = {"role": "assistant", "tool_calls": [CALL]}
        assert await client.rendered(USER, said, RESULT) == await client.rendered(USER, empty, RESULT)


async def test_c18_no_blank_content_beside_a_call(client: GlmClient) -> None:
    answer = await client.chat(tools=[TIME], tool_choice="required", thinking_budget=0, max_tokens=60)
    assert answer["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("kwargs", [{"enable_thinking": False}, {"thinking": False}])
async def test_d4_what_cannot_be_switched_off_is_kept_low(
    client: GlmClient, kwargs: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    lowest = await client.rendered(USER, reasoning_effort="low")
    assert await client.rendered(USER, chat_template_kwargs=kwargs) == lowest
    assert "thinking cannot be switched off" in caplog.text
    unknown = await client.rendered(USER, chat_template_kwargs={"zzz": 1})
    assert unknown == await client.rendered(USER)


async def test_d7_reasoning_sent_back(client: GlmClient) -> None:
    said = {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]}
    result = {**RESULT, "content": "noon " * 250}
    counts = []
    for reasoning in ({}, {"reasoning_content": "I need it. " * 9}, {"reasoning": "I need it. " * 9}):
        prompt = (USER, {**said, **reasoning}, result, USER)
        first, second = [(await client.chat(*prompt, tools=[TIME]))["usage"] for _ in range(2)]
        assert second["prompt_tokens"] == first["prompt_tokens"]
        cached = second["prompt_tokens_details"]["cached_tokens"]
        assert 0.9 * first["prompt_tokens"] <= cached < first["prompt_tokens"]
        counts.append(first["prompt_tokens"])
    assert counts[0] < counts[1] == counts[2]


async def test_d8_budgets_of_the_request_and_by_default(service: Service, client: GlmClient) -> None:
    """Reasoning ends in time, an answer follows, and reasoning does not come back."""
    long = {"max_tokens": 60, "min_tokens": 60}
    assert (await client.both(**long)).content == ""
    for budget in (0, 1, 48):
        answer = await client.both(thinking_budget=budget, **long)
        assert answer.content
        assert "think>" not in answer.content + answer.reasoning
    async with client_of(service, thinking_budget=20) as limited:
        usage = (await limited.chat(**long))["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= 20 + 1
        assert (await limited.both(**long)).content
        own = (await limited.chat(**long, thinking_budget=40))["usage"]
        assert 21 < own["completion_tokens_details"]["reasoning_tokens"] <= 40 + 1


async def test_g1_g2_null_content_and_empty_calls(client: GlmClient) -> None:
    called = {"role": "assistant", "tool_calls": [CALL]}
    prompts = {
        await client.rendered(USER, {**called, **content}, RESULT)
        for content in ({"content": None}, {"content": ""}, {})
    }
    assert len(prompts) == 1
    assert "None" not in prompts.pop()
    said = {"role": "assistant", "content": "hi"}
    assert await client.rendered(USER, {**said, "tool_calls": []}, USER) == await client.rendered(
        USER, said, USER
    )


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_g3_content_in_parts(client: GlmClient, role: str) -> None:
    parts = [{"type": "text", "text": "PLUM"}, {"type": "text", "text": "PEAR"}]
    prompt = await client.rendered({"role": role, "content": parts, "tool_call_id": "c1"}, USER)
    assert prompt.index("PLUM") < prompt.index("PEAR")
    assert "[{" not in prompt
    empty = await client.rendered({"role": role, "content": [], "tool_call_id": "c1"}, USER)
    assert empty == await client.rendered({"role": role, "content": "", "tool_call_id": "c1"}, USER)


async def test_g4_developer_and_unknown_roles(client: GlmClient) -> None:
    rule = {"content": "Reply only PLUM"}
    as_system = await client.rendered({"role": "system", **rule}, USER)
    assert as_system == await client.rendered({"role": "developer", **rule}, USER)
    assert (await client.send({"role": "wizard", **rule}, USER)).status_code == 400


@pytest.mark.parametrize("roles", ["uuuuuuuu", "uaau", "au", "s", "ussu"])
async def test_g6_any_order_of_roles(client: GlmClient, roles: str) -> None:
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages = [{"role": names[role], "content": f"word{index}"} for index, role in enumerate(roles)]
    assert (await client.send(*messages, max_tokens=1)).status_code == 200
    prompt = await client.rendered(*messages)
    assert [word in prompt for word in (f"word{i}" for i in range(len(roles)))] == [True] * len(roles)


async def test_g7_continuing_the_last_message(client: GlmClient) -> None:
    opening = {"role": "assistant", "content": "The largest planet is"}
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    prompt = await client.rendered(USER, opening, **fields)
    assert prompt.endswith("<think></think>The largest planet is")
    message = (await client.chat(USER, opening, **fields))["choices"][0]["message"]
    assert message["content"]
    assert not message["content"].startswith("The largest")
    assert "reasoning_content" not in message
    refused = await client.send(USER, opening, continue_final_message=True, add_generation_prompt=True)
    assert refused.status_code == 400
    assert (await client.rendered(USER, opening)).endswith("<|assistant|><think>")


async def test_b7_every_end_of_turn_ends(service: Service) -> None:
    """The tokenizer's role markers end a turn, whatever generation_config.json lists of them."""
    text = service.text
    ends = {text.tokenizer.decode([token]) for token in text.eos_token_ids}
    assert ends >= {"<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>"}
    assert not ends & {"<think>", "</think>"}


async def test_the_default_cache_is_fp16(service: Service) -> None:
    assert service.card.details["cache_format"] == "fp16"
