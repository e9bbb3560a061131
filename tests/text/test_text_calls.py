"""Tool calls at the level of text: every split gives the same calls (cases C1 to C18)."""

from __future__ import annotations

import json
import random

import pytest
import text_toy as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from text_calls import (
    GLM_TEXTS,
    HERMES_TEXTS,
    SNIPPET,
    TOOLS,
    arguments,
    assert_same,
    glm_call,
    hermes_call,
    parse,
    splits,
)

from tandem.core.requests import FinishReason
from tandem.text.bundle import OutputOptions, TextBundle
from tandem.text.parser import CallEvent, MessageParser
from tandem.text.tools.base import ToolFormat
from tandem.text.tools.glm import GLM
from tandem.text.tools.json_calls import HERMES, LLAMA3_JSON
from tandem.text.tools.schema import parse_tools


@pytest.mark.parametrize("name", GLM_TEXTS)
def test_c2_glm_calls_do_not_depend_on_splits(name: str) -> None:
    text, expected = GLM_TEXTS[name]
    outcome = assert_same(GLM, text)
    assert arguments(outcome) == expected
    assert outcome["content"].strip() in ("", "Let me see.")


def test_c2_two_glm_calls_for_every_cut_in_two_and_five_hundred_at_random() -> None:
    text, expected = GLM_TEXTS["two calls"]
    whole = parse(GLM, [text])
    assert arguments(whole) == expected
    for pieces in [[text[:at], text[at:]] for at in range(len(text))] + splits(text, 500):
        assert parse(GLM, pieces) == whole, pieces


@pytest.mark.parametrize("name", HERMES_TEXTS)
def test_c2_hermes_calls_do_not_depend_on_splits(name: str) -> None:
    text, expected = HERMES_TEXTS[name]
    outcome = assert_same(HERMES, text)
    assert arguments(outcome) == expected
    assert outcome["content"].strip() in ("", "Let me see.")


def test_llama3_calls_start_the_message() -> None:
    call = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
    two = assert_same(LLAMA3_JSON, f"{call}; <|python_tag|>{call}")
    assert arguments(two) == [("get_weather", {"city": "Oslo"})] * 2
    assert assert_same(LLAMA3_JSON, '{"answer": {"name": "get_weather"}}')["content"].startswith('{"answer"')
    assert assert_same(LLAMA3_JSON, f"See: {call}")["content"] == f"See: {call}"


@pytest.mark.parametrize("tool_format", [GLM, HERMES])
@given(data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_c6_any_string_round_trips(tool_format: ToolFormat, data: st.DataObject) -> None:
    text = st.text(alphabet=st.sampled_from("ab <>/\"'\\{}[]\n\t,:é🚀_"), max_size=40)
    path, content = data.draw(text), data.draw(text)
    if tool_format is GLM:
        written = glm_call("write_file", path=path, content=content)
    else:
        written = hermes_call("write_file", {"path": path, "content": content})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert arguments(parse(tool_format, pieces)) == [("write_file", {"path": path, "content": content})]


def test_c6_a_whole_page_round_trips() -> None:
    for tool_format, text in (
        (GLM, glm_call("write_file", path="a.html", content=SNIPPET)),
        (HERMES, hermes_call("write_file", {"path": "a.html", "content": SNIPPET})),
    ):
        for pieces in ([text], list(text), splits(text, 1)[-1]):
            assert arguments(parse(tool_format, pieces)) == [
                ("write_file", {"path": "a.html", "content": SNIPPET})
            ]


def is_json_prefix(text: str) -> bool:
    """Whether JSON could go on from here: close what is open, in every way one can be in the middle."""
    in_string, escaped, stack = False, False, []
    for character in text:
        if in_string:
            in_string, escaped = escaped or character != '"', character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]":
            stack.pop()
    closers = "".join(reversed(stack))
    endings = [
        "",
        '"',
        '": 1',
        ": 1",
        "1",
        '"a": 1',
        '\\"',
        'n"',
        "ull",
        "ll",
        "l",
        "rue",
        "ue",
        "e",
        "alse",
        "0",
    ]
    endings += ['u0041"', '0041"', '041"', '41"', '1"', '\\": 1', '": 1']
    for ending in endings:
        try:
            json.loads(text + ending + closers)
        except ValueError:
            continue
        return True
    return False


@pytest.mark.parametrize("tool_format", [GLM, HERMES])
def test_c6_every_streamed_prefix_is_the_beginning_of_json(tool_format: ToolFormat) -> None:
    values = {"zip": 'a "q" \\ \n', "n": "12", "ok": "true", "x": "nullable"}
    if tool_format is GLM:
        text = glm_call("types", **values)
    else:
        text = hermes_call("types", {"zip": values["zip"], "n": 12, "ok": True, "x": "nullable"})
    parser = MessageParser(
        reasoning=None,
        starts_in_reasoning=False,
        tool_format=tool_format,
        tools={spec.name: spec for spec in parse_tools(TOOLS)},
    )
    joined = ""
    for letter in text:
        for event in parser.feed(letter):
            assert isinstance(event, CallEvent)
            joined += event.arguments
            assert is_json_prefix(joined or "{"), joined
    assert json.loads(joined)["x"] == "nullable"


def test_c15_the_name_comes_first_and_whole_then_arguments_in_many_pieces(
    glm: TextBundle, chatml: TextBundle
) -> None:
    article = "word " * 300
    texts = (
        (glm, "</think>" + glm_call("write_file", path="a", content=article)),
        (chatml, hermes_call("write_file", {"path": "a", "content": article})),
    )
    for bundle, text in texts:
        options = OutputOptions(tools=tuple(TOOLS), starts_in_reasoning=bundle is glm)
        message = toy.run(bundle, text, options)
        pieces = [(at, piece) for at, delta in enumerate(message["deltas"]) for piece in delta.tool_calls]
        assert pieces[0][1].name == "write_file"
        assert pieces[0][0] < len(message["deltas"]) / 5
        assert len(pieces) > 50
        assert all(piece.name is None and piece.id is None for _, piece in pieces[1:])
        assert json.loads(message["calls"][0]["arguments"])["content"] == article


def test_c5_types_come_from_the_schema() -> None:
    raw = {
        "zip": "00123",
        "n": "40",
        "ok": "true",
        "tags": '["a"]',
        "o": '{"k":1}',
        "x": "null",
        "y": "null",
        "z": "1e3",
        "other": "7",
    }
    outcome = assert_same(GLM, glm_call("types", **raw))
    assert arguments(outcome) == [
        (
            "types",
            {
                "zip": "00123",
                "n": 40,
                "ok": True,
                "tags": ["a"],
                "o": {"k": 1},
                "x": None,
                "y": None,
                "z": 1000.0,
                "other": "7",
            },
        )
    ]


@pytest.mark.parametrize("value", ["NaN", "0x10", "007", "1 2", "[1,", "True", "'a'", "Infinity", "1.5"])
def test_c5_what_is_no_json_of_the_type_stays_a_string(value: str) -> None:
    assert arguments(assert_same(GLM, glm_call("types", n=value))) == [("types", {"n": value})]


@pytest.mark.parametrize("value", ["true", '{"a":1}', '"quoted"', "null", " 12 "])
def test_c5_strings_stay_byte_for_byte(value: str) -> None:
    assert arguments(assert_same(GLM, glm_call("types", zip=value, free=value))) == [
        ("types", {"zip": value, "free": value})
    ]


@pytest.mark.parametrize(("tool_format"), [GLM, HERMES])
def test_c8_a_cut_call_is_never_complete(tool_format: ToolFormat) -> None:
    if tool_format is GLM:
        text = glm_call("write_file", path="a.txt", content="x" * 30) + glm_call("get_time")
        first_end = text.index("</tool_call>") + len("</tool_call>")
    else:
        text = hermes_call("write_file", {"path": "a.txt", "content": "x" * 30}) + hermes_call("get_time", {})
        first_end = text.index("}}") + 2
    for limit in range(len(text)):
        outcome = parse(tool_format, list(text[:limit]), by_model=False)
        assert outcome["content"] == ""
        for number, (_, partial, _) in enumerate(outcome["calls"]):
            if number == 0 and limit >= first_end:
                assert json.loads(partial)
            elif number == 0 or tool_format is GLM:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(partial)


@pytest.mark.parametrize("tool_format", [GLM, HERMES])
def test_c9_a_call_ends_reasoning(tool_format: ToolFormat) -> None:
    call = glm_call("get_weather", city="Oslo")
    if tool_format is HERMES:
        call = hermes_call("get_weather", {"city": "Oslo"})
    for tail in ("", "</think>", "\n</think>\n"):
        outcome = assert_same(tool_format, f"Need data.\n{call}{tail}", reasoning=True)
        assert outcome["reasoning"] == "Need data."
        assert outcome["content"].strip() == ""
        assert arguments(outcome) == [("get_weather", {"city": "Oslo"})]


def test_c9_what_is_no_whole_call_stays_reasoning() -> None:
    for thought in (
        "maybe <tool_call>nope<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
        "say <tool_call> and so on",
        "then <tool_call>get_weather",
    ):
        outcome = assert_same(GLM, f"{thought} ok</think>Answer.", reasoning=True)
        assert outcome == {"reasoning": f"{thought} ok", "content": "Answer.", "calls": []}
    cut = parse(
        GLM, ["so <tool_call>get_weather<arg_key>city</arg_key><arg_value>Os"], reasoning=True, by_model=False
    )
    assert cut["calls"] == []
    assert cut["reasoning"].startswith("so <tool_call>get_weather")


@pytest.mark.parametrize("tool_format", [GLM, HERMES])
def test_c17_an_undeclared_tool_is_content(tool_format: ToolFormat) -> None:
    call = glm_call("nope", a="b") if tool_format is GLM else hermes_call("nope", {"a": "b"})
    outcome = assert_same(tool_format, f"Hm. {call} Done.")
    assert outcome == {"content": f"Hm. {call} Done.", "reasoning": "", "calls": []}


def test_c13_c17_calls_that_are_not_wanted(glm: TextBundle) -> None:
    text = "</think>" + glm_call("get_weather", city="Oslo") + glm_call("get_time")
    base = {"tools": tuple(TOOLS), "starts_in_reasoning": True}
    single = toy.run(glm, text, OutputOptions(**base, parallel_tool_calls=False))
    assert [call["name"] for call in single["calls"]] == ["get_weather"]
    assert single["finish"] == "tool_calls"
    dropped = toy.run(glm, text, OutputOptions(**base, drop_tool_calls=True))
    assert (dropped["calls"], dropped["content"], dropped["finish"]) == ([], "", "stop")
    without = toy.run(glm, text, OutputOptions(starts_in_reasoning=True))
    assert without["content"] == text.removeprefix("</think>")


def test_c18_whitespace_beside_calls_is_not_content(glm: TextBundle) -> None:
    call = glm_call("get_time")
    options = OutputOptions(tools=tuple(TOOLS), starts_in_reasoning=True)
    assert toy.run(glm, f"x</think>\n\n{call}\n{call}\n", options)["content"] == ""
    beside = toy.run(glm, f"x</think>\n\nOne moment.\n\n{call}\n", options)
    assert beside["content"] == "One moment."
    assert toy.run(glm, "x</think>Text.\n\n", options)["content"] == "Text.\n\n"


def test_c4_ids_are_unique(glm: TextBundle) -> None:
    text = "</think>" + glm_call("get_time") * 5
    options = OutputOptions(tools=tuple(TOOLS), starts_in_reasoning=True)
    ids = [call["id"] for _ in range(3) for call in toy.run(glm, text, options)["calls"]]
    assert len(set(ids)) == 15
    assert all(text.startswith("call_") for text in ids)


def test_c8_finish_reasons(glm: TextBundle) -> None:
    options = OutputOptions(tools=tuple(TOOLS), starts_in_reasoning=True)
    text = "</think>" + glm_call("write_file", path="a", content="b" * 40)
    cut = toy.run(glm, text[:-30], options, reason=FinishReason.LENGTH)
    assert cut["finish"] == "length"
    assert toy.run(glm, text, options)["finish"] == "tool_calls"
    assert toy.run(glm, "</think>No call.", options)["finish"] == "stop"


PARTS = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "get_weather",
    "write_file",
    "nope",
    "city",
    "path",
    '{"name": "get_weather", ',
    '"arguments": {"city": "x"}',
    "}",
    '"',
    "\\",
    " ",
    "\n",
    "word",
    "<",
    "null",
]


@pytest.mark.parametrize("tool_format", [GLM, HERMES, LLAMA3_JSON])
@pytest.mark.parametrize("reasoning", [True, False])
@given(parts=st.lists(st.sampled_from(PARTS), max_size=14), seed=st.integers(0, 999), by_model=st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_c2_any_mixture_of_tags_gives_the_same_for_every_split(
    tool_format: ToolFormat, reasoning: bool, parts: list[str], seed: int, by_model: bool
) -> None:
    text = "".join(parts)
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=4))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(tool_format, [text], reasoning=reasoning, by_model=by_model)
    assert parse(tool_format, pieces, reasoning=reasoning, by_model=by_model) == whole
    assert parse(tool_format, list(text), reasoning=reasoning, by_model=by_model) == whole
