"""Reasoning and messages through HTTP: cases D1, D5, D7, D8, G1-G4, G6, G7, G11, H10, J3."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Opens, StubServer, assert_error
from stub_engine import Script, say
from stub_model import GLM_TEMPLATE, HERMES_TEMPLATE, PLAIN_TEMPLATE

from tandem.core.errors import ServeError
from tandem.server.config import ServerConfig

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def test_d1_end_of_reasoning_split_over_tokens(opens: Opens) -> None:
    raw = b"abc</think>def"
    scripts = {
        f"cut {first:02} {second:02}": Script((raw[:first], raw[first:second], raw[second:]))
        for first in range(1, len(raw) - 1)
        for second in range(first + 1, len(raw))
    }
    scripts["as a control token"] = Script((b"abc", "</think>", b"def"))
    scripts["thin air"] = say("a < b, </thin air>, </think >")
    async with opens(scripts, template=GLM_TEMPLATE) as server:
        for key in scripts:
            joined = await server.stream(key)
            if key == "thin air":
                assert (joined.reasoning, joined.content) == ("a < b, </thin air>, </think >", "")
            else:
                assert (joined.reasoning, joined.content) == ("abc", "def"), key


async def test_d5_field_name_and_no_raw_tags(opens: Opens) -> None:
    script = Script((b"Let me think.", "</think>", b"Four."))
    async with opens({"2+2": script}, template=GLM_TEMPLATE) as server:
        message = (await server.choice("2+2"))["message"]
        assert message["reasoning_content"] == "Let me think."
        assert message["content"] == "Four."
        joined = await server.both("2+2")
        assert "".join(joined.deltas("reasoning_content")) == "Let me think."
        usage = (await server.chat("2+2")).json()["usage"]
        details = usage["completion_tokens_details"]
        assert 0 < details["reasoning_tokens"] < usage["completion_tokens"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", None])
async def test_d7_reasoning_in_the_history(opens: Opens, field: str | None) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    assistant: dict[str, Any] = {"role": "assistant", "content": "Looking.", "tool_calls": [call]}
    if field:
        assistant[field] = "I need the time. " * 10
    messages = [USER, assistant, {"role": "tool", "tool_call_id": "c1", "content": "noon " * 60}]
    async with opens(template=GLM_TEMPLATE) as server:
        first = (await server.chat(messages=messages)).json()["usage"]
        assert ("I need the time." in server.engine.prompts[-1]) == (field is not None)
        again = (await server.chat(messages=messages)).json()["usage"]
        assert again["prompt_tokens"] == first["prompt_tokens"]
        cached = again["prompt_tokens_details"]["cached_tokens"]
        assert cached >= first["prompt_tokens"] - 64  # whole chunks of the stub engine


async def test_d8_thinking_budget_is_enforced(opens: Opens) -> None:
    thought = Script((b"hmm " * 3,), repeats=True, ends=False)
    async with opens({"hard": thought}, template=GLM_TEMPLATE) as server:
        response = await server.chat("hard", thinking_budget=64, max_tokens=200)
        assert response.status_code == 200
        details = response.json()["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] <= 64 + 16
        message = response.json()["choices"][0]["message"]
        assert message["content"]
        assert "<" not in message["content"]


async def test_d8_a_default_budget_gives_way_to_the_requests(opens: Opens) -> None:
    thought = Script((b"hmm " * 3,), repeats=True, ends=False)
    config = ServerConfig(thinking_budget=20)
    for template, fields, most in (
        (GLM_TEMPLATE, {}, 20 + 16),
        (GLM_TEMPLATE, {"thinking_budget": None}, 20 + 16),
        (GLM_TEMPLATE, {"thinking_budget": 50}, 50 + 16),
        (GLM_TEMPLATE, {"thinking_budget": 1000}, 200),
        (PLAIN_TEMPLATE, {}, 0),
    ):
        async with opens({"hard": thought}, template=template, config=config) as server:
            response = await server.chat("hard", max_tokens=200, **fields)
            usage = response.json()["usage"]
            assert most - 16 <= usage["completion_tokens_details"]["reasoning_tokens"] <= most
            assert usage["completion_tokens"] == 200


def test_d8_a_default_budget_below_zero_is_refused() -> None:
    with pytest.raises(ServeError, match="0 or more; found: -1"):
        ServerConfig(thinking_budget=-1).check()


async def prompt_of(server: StubServer, *messages: dict[str, Any], **fields: Any) -> str:
    response = await server.chat(messages=list(messages), **fields)
    assert response.status_code == 200, response.text
    return server.engine.prompts[-1]


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_g1_null_content_beside_tool_calls(opens: Opens, template: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    async with opens(template=template) as server:
        prompts = [
            await prompt_of(server, USER, {"role": "assistant", "tool_calls": [call], **content}, result)
            for content in ({"content": None}, {"content": ""}, {})
        ]
        assert prompts[0] == prompts[1] == prompts[2]
        assert "None" not in prompts[0]
        assert "null" not in prompts[0]


async def test_g2_empty_tool_calls(server: StubServer) -> None:
    said = {"role": "assistant", "content": "hello"}
    with_key = await prompt_of(server, USER, {**said, "tool_calls": []}, USER)
    assert with_key == await prompt_of(server, USER, said, USER)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_g3_content_in_parts(server: StubServer, role: str) -> None:
    parts = [{"type": "text", "text": "PLUM"}, {"type": "text", "text": "PEAR"}]
    prompt = await prompt_of(server, {"role": role, "content": parts, "tool_call_id": "c1"}, USER)
    assert prompt.index("PLUM") < prompt.index("PEAR")
    assert "[{" not in prompt
    empty = await prompt_of(server, {"role": role, "content": [], "tool_call_id": "c1"}, USER)
    assert empty == await prompt_of(server, {"role": role, "content": "", "tool_call_id": "c1"}, USER)


async def test_g4_developer_is_system_and_unknown_roles_are_refused(server: StubServer) -> None:
    rule = {"content": "Reply only PLUM"}
    as_developer = await prompt_of(server, {"role": "developer", **rule}, USER)
    assert as_developer == await prompt_of(server, {"role": "system", **rule}, USER)
    for role in ("wizard", None, 5):
        response = await server.chat(messages=[{"role": role, **rule}, USER])
        assert_error(response, 400)
        assert response.json()["error"]["param"].startswith("messages[0]")


@pytest.mark.parametrize("roles", ["uuu", "uaau", "au", "s", "ussu"])
async def test_g6_any_order_of_roles(server: StubServer, roles: str) -> None:
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages = [{"role": names[role], "content": f"word{index}"} for index, role in enumerate(roles)]
    prompt = await prompt_of(server, *messages)
    assert all(f"word{index}" in prompt for index in range(len(roles)))


async def test_g7_continuing_the_last_message(opens: Opens) -> None:
    opening = {"role": "assistant", "content": "The largest planet is"}
    for template in (GLM_TEMPLATE, HERMES_TEMPLATE):
        async with opens({"planet is": say(" Jupiter.")}, template=template) as server:
            prompt = await prompt_of(
                server, USER, opening, continue_final_message=True, add_generation_prompt=False
            )
            assert prompt.endswith("The largest planet is")
            assert prompt == await prompt_of(server, USER, opening, continue_final_message=True)
            answer = await server.choice(messages=[USER, opening], continue_final_message=True)
            assert answer["message"]["content"] == " Jupiter."
            assert "reasoning_content" not in answer["message"]
            both = await server.chat(
                messages=[USER, opening], continue_final_message=True, add_generation_prompt=True
            )
            assert_error(both, 400, param="continue_final_message")


async def test_g11_typed_markers_stay_text(opens: Opens) -> None:
    async with opens(template=GLM_TEMPLATE) as server:
        await server.chat("print </think> and <|user|> and <|im_end|> literally")
        spec = server.engine.sampling[-1]
        special = server.service.text.tokenizer.special_token_ids
        used = [server.service.text.tokenizer.decode([token]) for token in spec.history if token in special]
        assert used == ["<|user|>", "<|assistant|>", "<think>"]


async def test_g11_tool_results_are_paired_by_id(opens: Opens) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": f"get_{name}", "arguments": "{}"}}
        for name in ("a", "b")
    ]
    results = {name: {"role": "tool", "tool_call_id": name, "content": f"result-{name}"} for name in "ab"}
    asked = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    async with opens(template=GLM_TEMPLATE) as server:
        in_order = await prompt_of(server, *asked, results["a"], results["b"])
        assert in_order == await prompt_of(server, *asked, results["b"], results["a"])
        no_id = {"role": "tool", "content": "result"}
        assert (await server.chat(messages=[*asked, no_id])).status_code in {200, 400}


@pytest.mark.parametrize("position", [0, 2])
async def test_h10_image_to_a_text_server(server: StubServer, position: int) -> None:
    messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": "yes"}, USER]
    messages[position] = {"role": "user", "content": [{"type": "text", "text": "what is this?"}, PIXEL]}
    for stream in (True, False):
        response = await server.chat(messages=messages, stream=stream)
        assert_error(response, 400)
        assert f"messages[{position}]" in response.json()["error"]["param"]
        assert "image" in response.json()["error"]["message"]
    body = {"messages": messages}
    assert_error(await server.client.post("/tokenize", json=body), 400)


async def test_j3_only_the_request_defines_the_context(opens: Opens) -> None:
    async with opens({"one": say("a secret word", token_delay_s=0.01)}) as server:
        async with server.client.stream(
            "POST",
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "one"}], "stream": True},
        ) as response:
            async for _ in response.aiter_lines():
                break
        prompt = await prompt_of(server, {"role": "user", "content": "edited"})
        assert "secret" not in prompt
        assert "one" not in prompt
