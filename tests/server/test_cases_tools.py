"""Tool calls through HTTP: cases C1, C2, C4-C6, C8, C9, C11-C13, C15-C18."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from harness import Opens, StubServer
from stub_engine import Script, say
from stub_model import GLM_TEMPLATE, HERMES_TEMPLATE

pytestmark = pytest.mark.anyio


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"})
TIME = {"type": "function", "function": {"name": "get_time"}}


def glm_call(name: str, **arguments: str) -> str:
    pairs = (f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


def hermes_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def written(template: str) -> tuple[Callable[..., str], str]:
    """How a call is written for this template, and what comes before an answer."""
    return (glm_call, "</think>") if template is GLM_TEMPLATE else (hermes_call, "")


def arguments(call: dict[str, Any]) -> Any:
    return json.loads(call["function"]["arguments"])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (GLM_TEMPLATE, "</think><tool_call>get_time</tool_call>"),
        (HERMES_TEMPLATE, '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'),
        (HERMES_TEMPLATE, '<tool_call>\n{"name": "get_time"}\n</tool_call>'),
    ],
)
async def test_c1_call_without_arguments(opens: Opens, template: str, text: str) -> None:
    async with opens({"time": say(text)}, template=template) as server:
        joined = await server.both("time", tools=[TIME])
        assert [call["function"] for call in joined.calls] == [{"name": "get_time", "arguments": "{}"}]
        assert joined.reason == "tool_calls"


async def test_c2_calls_do_not_depend_on_chunk_boundaries(opens: Opens) -> None:
    text = (
        "</think>Two."
        + glm_call("get_weather", city="Oslo, <b>ø</b>")
        + glm_call("get_weather", city="Bergen")
    )
    raw = text.encode()
    generator = random.Random(3)
    scripts = {"every byte": say(raw), "all at once": Script((raw[:9], raw[9:]))}
    for index in range(12):
        cuts = sorted(generator.sample(range(1, len(raw)), generator.randint(12, 60)))
        edges = [0, *cuts, len(raw)]
        pieces = tuple(raw[a:b] for a, b in itertools.pairwise(edges))
        scripts[f"split {index:02}"] = Script(pieces)
    async with opens(scripts, template=GLM_TEMPLATE) as server:
        for key in scripts:
            joined = await server.both(key, tools=[WEATHER])
            assert [arguments(call) for call in joined.calls] == [
                {"city": "Oslo, <b>ø</b>"},
                {"city": "Bergen"},
            ]
            assert joined.content == "Two."


QWEN_TEMPLATE = HERMES_TEMPLATE.replace('{"name": <name>', "<function=NAME>")
MISTRAL_TEMPLATE = (
    "{{ tools }}{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}{# [TOOL_CALLS] #}"
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            QWEN_TEMPLATE,
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n"
            "</parameter>\n</function>\n</tool_call>",
        ),
        (MISTRAL_TEMPLATE, '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
        (MISTRAL_TEMPLATE, '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'),
    ],
    ids=["qwen", "mistral list", "mistral args"],
)
async def test_calls_of_qwen_and_mistral(opens: Opens, template: str, text: str) -> None:
    async with opens({"weather": say(f"Let me see.\n{text}")}, template=template) as server:
        joined = await server.both("weather", tools=[WEATHER])
        assert [arguments(call) for call in joined.calls] == [{"city": "Oslo"}]
        assert (joined.content, joined.reason) == ("Let me see.", "tool_calls")
        forced = await server.both("weather", tools=[WEATHER], tool_choice="required", max_tokens=400)
        assert [call["function"]["name"] for call in forced.calls][:1] == ["get_weather"]


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_c4_ids_are_present_and_unique(opens: Opens, template: str) -> None:
    call, opening = written(template)
    text = f"{opening}{call('get_weather', city='Oslo')}\n{call('get_weather', city='Rome')}"
    ids = []
    async with opens({"weather": say(text)}, template=template) as server:
        for _ in range(5):
            ids += [call["id"] for call in (await server.stream("weather", tools=[WEATHER])).calls]
            message = (await server.choice("weather", tools=[WEATHER]))["message"]
            assert all(call["type"] == "function" for call in message["tool_calls"])
            ids += [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids) == 20


async def test_c5_argument_types_follow_the_schema(opens: Opens) -> None:
    typed = tool(
        "save", zip={"type": "string"}, n={"type": "integer"}, ok={"type": "boolean"}, tags={"type": "array"},
        o={"type": "object"}, x={"type": ["string", "null"]}, flag={"type": "string"},
        text={"type": "string"}, hexa={"type": "integer"},
    )  # fmt: skip
    text = "</think>" + glm_call(
        "save", zip="00123", n="40", ok="true", tags='["a"]', o='{"k":1}', x="null", flag="true",
        text='{"a":1}', hexa="0x10",
    )  # fmt: skip
    async with opens({"save": say(text)}, template=GLM_TEMPLATE) as server:
        (call,) = (await server.both("save", tools=[typed])).calls
        assert arguments(call) == {
            "zip": "00123", "n": 40, "ok": True, "tags": ["a"], "o": {"k": 1}, "x": None, "flag": "true",
            "text": '{"a":1}', "hexa": "0x10",
        }  # fmt: skip


async def test_c6_payload_with_quotes_braces_newlines_and_tags(opens: Opens) -> None:
    code = '\n\nif (a["x"] == \'}\') {\n\treturn "<div class=\\"b\\">😀</div>";\n} // "\\\\"\n' * 8
    write = tool("write_file", content={"type": "string"})
    async with opens(
        {"write": say("</think>" + glm_call("write_file", content=code))}, template=GLM_TEMPLATE
    ) as server:
        (call,) = (await server.both("write", tools=[write])).calls
        assert arguments(call) == {"content": code}
    async with opens(
        {"write": say(hermes_call("write_file", content=code))}, template=HERMES_TEMPLATE
    ) as server:
        (call,) = (await server.both("write", tools=[write])).calls
        assert arguments(call) == {"content": code}


@pytest.mark.parametrize("limit", range(10, 80, 7))  # a lone "<" could still become text
async def test_c8_call_cut_by_the_token_limit(opens: Opens, limit: int) -> None:
    write = tool("write_file", path={"type": "string"}, content={"type": "string"})
    text = "</think>" + glm_call("write_file", path="a.txt", content="line\n" * 200)
    async with opens({"write": say(text)}, template=GLM_TEMPLATE) as server:
        joined = await server.both("write", tools=[write], max_tokens=limit)
        assert joined.reason == "length"
        assert "<" not in joined.content
        for call in joined.calls:
            with pytest.raises(json.JSONDecodeError):
                arguments(call)


async def test_c9_call_before_the_end_of_reasoning(opens: Opens) -> None:
    text = "Need data." + glm_call("get_weather", city="Oslo")
    async with opens({"weather": say(text)}, template=GLM_TEMPLATE) as server:
        joined = await server.both("weather", tools=[WEATHER])
        assert joined.reasoning == "Need data."
        assert [arguments(call) for call in joined.calls] == [{"city": "Oslo"}]
        assert joined.reason == "tool_calls"


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_c11_named_tool_choice(opens: Opens, template: str) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    prose = ("</think>" if template is GLM_TEMPLATE else "") + "I would rather talk about something else."
    async with opens({"weather": say(prose)}, template=template) as server:
        joined = await server.both("weather", tools=[TIME, WEATHER], tool_choice=choice, max_tokens=400)
        (call,) = joined.calls
        assert call["function"]["name"] == "get_weather"
        assert isinstance(arguments(call)["city"], str)
        assert joined.reason == "tool_calls"


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_c12_required_is_enforced(opens: Opens, template: str) -> None:
    prose = ("</think>" if template is GLM_TEMPLATE else "") + "Good morning to you too!"
    async with opens({"Good morning": say(prose)}, template=template) as server:
        joined = await server.both(
            "Good morning", tools=[TIME, WEATHER], tool_choice="required", max_tokens=400
        )
        assert joined.reason == "tool_calls"
        assert len(joined.calls) >= 1
        assert "talk" not in joined.content


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_c13_none(opens: Opens, template: str) -> None:
    call, opening = written(template)
    text = f"{opening}Let me see. {call('get_weather', city='Oslo')}"
    async with opens({"weather": say(text)}, template=template) as server:
        joined = await server.both("weather", tools=[WEATHER], tool_choice="none")
        assert joined.calls == []
        assert joined.content.strip() == "Let me see."
        assert joined.reason == "stop"
        assert "get_weather" not in server.engine.prompts[-1]
        messages = [{"role": "user", "content": "weather"}]
        for choice in ("none", "auto"):
            fields = {"messages": messages, "tools": [WEATHER], "tool_choice": choice}
            shown = (await server.client.post("/tokenize", json=fields)).json()["prompt"]
            assert ("get_weather" in shown) == (choice == "auto")


async def test_c15_name_first_then_arguments_in_pieces(opens: Opens) -> None:
    article = tool("write_article", title={"type": "string"}, content={"type": "string"})
    text = "</think>" + glm_call("write_article", title="Oslo", content="word " * 300)
    async with opens({"write": say(text)}, template=GLM_TEMPLATE) as server:
        joined = await server.stream(
            "write", tools=[article, tool("run_in_terminal", command={"type": "string"})]
        )
        parts = [part for delta in joined.deltas("tool_calls") for part in delta]
        assert parts[0]["function"]["name"] == "write_article"
        assert all("name" not in part["function"] for part in parts[1:])
        assert len(parts) >= 6
        assert arguments(joined.calls[0])["content"] == "word " * 300


@pytest.mark.parametrize("given", [None, "", "{}", {}, "not json"])
async def test_c16_arguments_in_the_history(opens: Opens, given: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": given}}
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    for template in (GLM_TEMPLATE, HERMES_TEMPLATE):
        async with opens(template=template) as server:
            response = await server.chat(messages=messages, tools=[TIME])
            assert response.status_code == (400 if given == "not json" else 200)
            if given == "not json":
                assert response.json()["error"]["param"].startswith("messages[1]")
            await server.alive()


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_c17_undeclared_tool_and_too_many_calls(opens: Opens, template: str) -> None:
    call, opening = written(template)
    scripts = {
        "undeclared": say(opening + call("nope", x="1")),
        "two": say(opening + call("get_weather", city="Oslo") + call("get_weather", city="Rome")),
    }
    async with opens(scripts, template=template) as server:
        undeclared = await server.both("undeclared", tools=[WEATHER])
        assert undeclared.done
        assert undeclared.calls == []
        assert undeclared.reason == "stop"
        assert "nope" in undeclared.content
        one = await server.both("two", tools=[WEATHER], parallel_tool_calls=False)
        assert one.done
        assert [arguments(call) for call in one.calls] == [{"city": "Oslo"}]
        assert len((await server.both("two", tools=[WEATHER])).calls) == 2


async def test_c18_no_blank_content_beside_a_call(opens: Opens) -> None:
    text = "Thinking.</think>\n\n" + glm_call("get_weather", city="Oslo") + "\n"
    async with opens({"weather": say(text)}, template=GLM_TEMPLATE) as server:
        message = (await server.choice("weather", tools=[WEATHER]))["message"]
        assert "content" in message
        assert not message["content"]
        assert (await server.stream("weather", tools=[WEATHER])).content.strip() == ""


CITY = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
AS_CITY = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


@pytest.mark.parametrize("template", [GLM_TEMPLATE, HERMES_TEMPLATE])
async def test_a_schema_beside_tools_leaves_the_choice_to_the_model(opens: Opens, template: str) -> None:
    opening, call = ("</think>", glm_call) if template is GLM_TEMPLATE else ("", hermes_call)
    said = {
        "weather": say(opening + call("get_weather", city="Oslo")),
        "count": say(opening + '{"answer": 42}'),
        "prose": say(opening + "Well, let me think about it."),
    }
    async with opens(said, template=template) as server:
        ask = server.both
        fields = {"tools": [WEATHER], "response_format": AS_CITY, "max_tokens": 400}
        called = await ask("weather", **fields)
        assert [arguments(one) for one in called.calls] == [{"city": "Oslo"}]
        assert (called.content or "", called.reason) == ("", "tool_calls")
        answered = await ask("count", **fields)
        assert json.loads(answered.content) == {"answer": 42}
        assert (answered.calls, answered.reason) == ([], "stop")
        forced = await ask("prose", **fields)
        assert forced.calls or set(json.loads(forced.content)) == {"answer"}
        never = await ask("weather", **fields, tool_choice="none")
        assert (never.calls, set(json.loads(never.content))) == ([], {"answer"})
        always = await ask("count", **fields, tool_choice="required")
        assert (always.content or "", always.reason) == ("", "tool_calls")


async def test_json_object_beside_tools(opens: Opens) -> None:
    async with opens({"q": say('{"any": ["thing"]}')}, template=HERMES_TEMPLATE) as server:
        fields = {"tools": [WEATHER], "response_format": {"type": "json_object"}, "max_tokens": 60}
        assert json.loads((await server.both("q", **fields)).content) == {"any": ["thing"]}


async def test_other_constraints_beside_tools_are_refused(server: StubServer) -> None:
    fields = {"tools": [WEATHER], "guided_regex": "[a-z]+"}
    assert (await server.chat(**fields)).status_code == 400
    assert (await server.chat(**fields, tool_choice="none", max_tokens=40)).status_code == 200
