"""Tools, calls in both formats, and a way to parse them in any pieces."""

from __future__ import annotations

import json
import random
from typing import Any

from tandem.text.formats import THINK
from tandem.text.parser import CallEvent, MessageParser, TextEvent
from tandem.text.tools.base import ToolFormat
from tandem.text.tools.schema import parse_tools


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING = {"type": "string"}
TOOLS = [
    tool("get_time"),
    tool("get_weather", city=STRING),
    tool("write_file", path=STRING, content=STRING),
    tool("run_in_terminal", command=STRING, background={"type": "boolean"}),
    tool(
        "types",
        zip=STRING,
        n={"type": "integer"},
        ok={"type": "boolean"},
        tags={"type": "array"},
        o={"type": "object"},
        x={"type": ["string", "null"]},
        y={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        z={"type": "number"},
        free={},
    ),
]
SNIPPET = (
    '\n\n<!DOCTYPE html>\n<div class="a" id=\'b\'>\n\t<script>\n\t\tconst s = "\\"}{\\n"; f(\'}\')\n'
    "\t</script>\n</div> 🧑\u200d🚀 {{\\\\}}\r\n"
    + "\n".join(f'<p>{n}: \\t "quoted" </p>' for n in range(40))
    + "\n\n"
)


def glm_call(name: str, **values: str) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()
    )
    return f"<tool_call>{name}{pairs}</tool_call>"


def hermes_call(name: str, arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


Outcome = dict[str, Any]


def parse(
    tool_format: ToolFormat,
    pieces: list[str],
    *,
    reasoning: bool = False,
    by_model: bool = True,
    tools: list[dict[str, Any]] | None = None,
) -> Outcome:
    """Feed pieces, join events."""
    parser = MessageParser(
        reasoning=THINK if reasoning else None,
        starts_in_reasoning=reasoning,
        tool_format=tool_format,
        tools={spec.name: spec for spec in parse_tools(TOOLS if tools is None else tools)},
    )
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish(by_model=by_model)
    calls: list[list[Any]] = []
    for event in events:
        if isinstance(event, CallEvent):
            if event.name is not None:
                calls.append([event.name, "", False])
            calls[-1][1] += event.arguments
            calls[-1][2] = calls[-1][2] or event.done
    texts = [event for event in events if isinstance(event, TextEvent)]
    return {
        "content": "".join(event.text for event in texts if event.channel == "content"),
        "reasoning": "".join(event.text for event in texts if event.channel == "reasoning"),
        "calls": calls,
    }


def arguments(outcome: Outcome) -> list[tuple[str, Any]]:
    assert all(done for _, _, done in outcome["calls"])
    return [(name, json.loads(text)) for name, text, _ in outcome["calls"]]


def splits(text: str, count: int = 60) -> list[list[str]]:
    """All at once, letter by letter, every cut in two, and random cuts."""
    source = random.Random(len(text))
    ways = [[text], list(text)] + [[text[:at], text[at:]] for at in range(0, len(text), 3)]
    for _ in range(count):
        cuts = sorted(source.choices(range(len(text) + 1), k=source.randint(2, 9)))
        ways.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return ways


def assert_same(tool_format: ToolFormat, text: str, **how: Any) -> Outcome:
    """The outcome, which must be the same for every split."""
    whole = parse(tool_format, [text], **how)
    for pieces in splits(text):
        assert parse(tool_format, pieces, **how) == whole, pieces
    return whole


GLM_TEXTS = {
    "two calls": (
        "Let me see."
        + glm_call("get_weather", city="Oslo")
        + glm_call("write_file", path="a", content='b{}"'),
        [("get_weather", {"city": "Oslo"}), ("write_file", {"path": "a", "content": 'b{}"'})],
    ),
    "no arguments": ("<tool_call>get_time</tool_call>", [("get_time", {})]),
    "no arguments, line breaks": ("<tool_call>get_time\n</tool_call>\n", [("get_time", {})]),
    "line breaks between tags": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "end of value missing": (
        "<tool_call>write_file<arg_key>path</arg_key><arg_value>a<arg_key>content</arg_key>"
        "<arg_value>b</tool_call>",
        [("write_file", {"path": "a", "content": "b"})],
    ),
    "begin of value missing": (
        "<tool_call>get_weather<arg_key>city</arg_key>Oslo</arg_value></tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "begin of value doubled": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value><arg_value>Oslo</arg_value></arg_value>"
        "</tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "end of key missing": (
        "<tool_call>get_weather<arg_key>city<arg_value>Oslo</arg_value></tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "begin of key missing": (
        "<tool_call>write_file\npath</arg_key><arg_value>a</arg_value>\ncontent</arg_key><arg_value>b</arg_value>"
        "</tool_call>",
        [("write_file", {"path": "a", "content": "b"})],
    ),
    "key without a value": (
        "<tool_call>get_weather<arg_key>unit</arg_key><arg_key>city</arg_key><arg_value>Oslo</arg_value>"
        "</tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "key given twice": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>city</arg_key>"
        "<arg_value>Rome</arg_value></tool_call>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "call not closed": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>",
        [("get_weather", {"city": "Oslo"})],
    ),
    "call not closed before the next": (
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><tool_call>get_time</tool_call>",
        [("get_weather", {"city": "Oslo"}), ("get_time", {})],
    ),
    "tags quoted in a value": (
        glm_call(
            "write_file",
            path="</arg_value> <tool_call> </tool_call> x",
            content="Use <arg_key>K</arg_key><arg_value>V</arg_value> like so",
        ),
        [
            (
                "write_file",
                {
                    "path": "</arg_value> <tool_call> </tool_call> x",
                    "content": "Use <arg_key>K</arg_key><arg_value>V</arg_value> like so",
                },
            )
        ],
    ),
    "empty value": (glm_call("get_weather", city=""), [("get_weather", {"city": ""})]),
}

HERMES_TEXTS = {
    "two calls": (
        "Let me see." + hermes_call("get_weather", {"city": "Oslo"}) + "\n" + hermes_call("get_time", {}),
        [("get_weather", {"city": "Oslo"}), ("get_time", {})],
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"city": "O}slo"}, "name": "get_weather"}</tool_call>',
        [("get_weather", {"city": "O}slo"})],
    ),
    "arguments as text": (
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
        [("get_weather", {"city": "Oslo"})],
    ),
    "arguments null": ('<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [("get_time", {})]),
    "arguments missing": ('<tool_call>{"name": "get_time"}</tool_call>', [("get_time", {})]),
    "parameters": (
        '<tool_call>{"id": "7", "name": "get_weather", "parameters": {"city": "Oslo"}}</tool_call>',
        [("get_weather", {"city": "Oslo"})],
    ),
    "a raw line break in a string": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Os\nlo"}}</tool_call>',
        [("get_weather", {"city": "Os\nlo"})],
    ),
    "a brace too many": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}}\n</tool_call>',
        [("get_weather", {"city": "Oslo"})],
    ),
    "not closed": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        [("get_weather", {"city": "Oslo"})],
    ),
    "tags quoted": (
        hermes_call("get_weather", {"city": '</tool_call> "<tool_call>" \\'}),
        [("get_weather", {"city": '</tool_call> "<tool_call>" \\'})],
    ),
    "nested": (
        hermes_call("types", {"o": {"a": [1, {"b": "}"}]}, "z": -1.5e3, "ok": True}),
        [("types", {"o": {"a": [1, {"b": "}"}]}, "z": -1500.0, "ok": True})],
    ),
}


USER = {"role": "user", "content": "Hi"}
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "안녕 <b>&'\" é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def history_call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
