"""Calls as Qwen3-Coder and Mistral write them: every split gives the same, forced calls parse (C1 to C18)."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import text_toy as toy
from hypothesis import given, settings
from hypothesis import strategies as st
from test_text_gate import SCHEMA, WEATHER, without_unenforced
from test_text_gate import TOOLS as FORCED
from text_calls import TOOLS, arguments, assert_same, parse
from text_walk import walk

from tandem.text.bundle import ConstraintSpec, OutputOptions, TextBundle
from tandem.text.tools.base import ToolFormat
from tandem.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from tandem.text.tools.qwen_xml import QWEN_XML

FORMATS = [QWEN_XML, MISTRAL, MISTRAL_ARGS]
CLOSING = "\n</parameter>"
"""What ends a free string of Qwen's; elsewhere its letters are not allowed or do no harm."""
OSLO = [("get_weather", {"city": "Oslo"})]


def names(tool_format: ToolFormat) -> str:
    return tool_format.name


def xml(name: str, **values: str) -> str:
    return QWEN_XML.write_call(name, values)


LINES = "b\n<p>"
TAGS = "x</parameter> y\n<parameter=zip>\n</function>; </tool_call>!"
QWEN_TEXTS = {
    "two calls": (
        f"Let me see.\n{xml('get_weather', city='Oslo')}\n{xml('write_file', path='a', content=LINES)}",
        [*OSLO, ("write_file", {"path": "a", "content": LINES})],
    ),
    "no arguments": (xml("get_time"), [("get_time", {})]),
    "types come from the schema": (
        xml("types", zip="00123", n="40", ok="true", tags='["a"]', x="null", z="1e3", other="7"),
        [
            (
                "types",
                {"zip": "00123", "n": 40, "ok": True, "tags": ["a"], "x": None, "z": 1000.0, "other": "7"},
            )
        ],
    ),
    "all in one line": (
        "<tool_call><function=get_weather><parameter=city>Oslo</parameter></function></tool_call>",
        OSLO,
    ),
    "without the outer tag": (
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        OSLO,
    ),
    "outer end missing": (xml("get_weather", city="Oslo").removesuffix("\n</tool_call>"), OSLO),
    "inner end missing": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>",
        OSLO,
    ),
    "end of value missing": (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na\n<parameter=content>\nb\n</function>\n</tool_call>",
        [("write_file", {"path": "a", "content": "b"})],
    ),
    "tags inside a value": (
        xml("write_file", path="a", content=TAGS),
        [("write_file", {"path": "a", "content": TAGS})],
    ),
    "line breaks belong to the value beyond the first": (
        xml("write_file", path="a", content="\n\n b \n\n"),
        [("write_file", {"path": "a", "content": "\n\n b \n\n"})],
    ),
    "a parameter twice": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=city>\nRome\n"
        "</parameter>\n</function>\n</tool_call>",
        OSLO,
    ),
    "stray text between parameters": (
        xml("get_weather", city="Oslo").replace("<parameter", "here: <parameter"),
        OSLO,
    ),
}  # fmt: skip
MISTRAL_TEXTS = {
    "a list": (
        'Let me see.[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "get_time", "arguments": {}}]',
        [*OSLO, ("get_time", {})],
    ),
    "spaces and ids": (
        '[TOOL_CALLS] [ {"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "abcdefghi"} ,\n'
        ' {"arguments": {}, "name": "get_time"} ]',
        [*OSLO, ("get_time", {})],
    ),
    "no list": ('[TOOL_CALLS]{"name": "get_weather", "arguments": {"city": "Oslo"}}', OSLO),
    "the list is not closed": ('[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}', OSLO),
    "brackets in a string": (
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "O}],[{slo"}}]',
        [("get_weather", {"city": "O}],[{slo"})],
    ),
    "two lists": (
        '[TOOL_CALLS][{"name": "get_time", "arguments": {}}]\n[TOOL_CALLS][{"name": "get_time"}]',
        [("get_time", {})] * 2,
    ),
    "name and arguments": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS]{}',
        [*OSLO, ("get_time", {})],
    ),
    "with ids": (
        'Let me see.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS] {"city": "Oslo"}\n',
        OSLO,
    ),
    "without the tag between": ('[TOOL_CALLS]get_weather{"city": "Oslo"}', OSLO),
}


@pytest.mark.parametrize("name", QWEN_TEXTS)
def test_c2_qwen_calls_do_not_depend_on_splits(name: str) -> None:
    text, expected = QWEN_TEXTS[name]
    outcome = assert_same(QWEN_XML, text)
    assert arguments(outcome) == expected
    assert outcome["content"].strip() in ("", "Let me see.")


@pytest.mark.parametrize("tool_format", [MISTRAL, MISTRAL_ARGS], ids=names)
@pytest.mark.parametrize("name", MISTRAL_TEXTS)
def test_c2_mistral_calls_do_not_depend_on_splits(name: str, tool_format: ToolFormat) -> None:
    text, expected = MISTRAL_TEXTS[name]
    outcome = assert_same(tool_format, text)
    assert arguments(outcome) == expected
    assert outcome["content"].strip() in ("", "Let me see.")


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
@given(data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_c6_any_string_round_trips(tool_format: ToolFormat, data: st.DataObject) -> None:
    text = st.text(alphabet=st.sampled_from("ab <>/\"'\\{}[]\n\t,:é🚀_"), max_size=40)
    wanted = {"path": data.draw(text), "content": data.draw(text)}
    written = tool_format.write_call("write_file", wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
    assert arguments(parse(tool_format, pieces)) == [("write_file", wanted)]


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
def test_c8_a_cut_call_is_never_complete(tool_format: ToolFormat) -> None:
    text = tool_format.write_call("write_file", {"path": "a.txt", "content": "x" * 30})
    whole_at = len(text) - (len("]") if tool_format is MISTRAL else 0)
    for limit in range(len(text)):
        outcome = parse(tool_format, list(text[:limit]), by_model=False)
        assert outcome["content"] == ""
        for _, partial, _ in outcome["calls"]:
            if limit < whole_at - 1:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(partial)


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
def test_c9_a_call_ends_reasoning(tool_format: ToolFormat) -> None:
    call = tool_format.write_call("get_weather", {"city": "Oslo"})
    for tail in ("", "</think>", "\n</think>\n"):
        outcome = assert_same(tool_format, f"Need data.\n{call}{tail}", reasoning=True)
        assert (outcome["reasoning"], outcome["content"].strip()) == ("Need data.", "")
        assert arguments(outcome) == OSLO


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
def test_c17_an_undeclared_tool_is_content(tool_format: ToolFormat) -> None:
    text = "Hm. " + tool_format.write_call("launch", {"target": "moon"})
    outcome = assert_same(tool_format, text)
    assert (outcome["content"], outcome["calls"]) == (text, [])


@pytest.mark.parametrize(
    "text", ["[TOOL_CALLS] are a marker", "<function=launch> is XML", "a < b, <tool_call> c"]
)
def test_markers_in_prose_are_content(text: str) -> None:
    for tool_format in FORMATS:
        assert assert_same(tool_format, text)["content"] == text


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
@pytest.mark.parametrize("tool_name", [None, "get_weather", "get_time", "note"])
def test_c11_c12_forced_calls_parse_and_validate(
    tmp_path: Path, tool_format: ToolFormat, tool_name: str | None
) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, toy.CHATML), tool_format=tool_format.name)
    for seed in range(4):
        spec = ConstraintSpec(kind="tools", tools=FORCED, tool_name=tool_name, param="tools")
        tokens = walk(bundle, bundle.constraint(spec), seed, free_steps=12, closing_text=CLOSING)
        message = toy.feed(bundle.output_processor(OutputOptions(tools=FORCED)), tokens)
        assert (message["finish"], message["content"]) == ("tool_calls", "")
        assert message["calls"]
        assert tool_name in (None, message["calls"][0]["name"])
        for call in message["calls"]:
            given_arguments = json.loads(call["arguments"])
            if call["name"] == "get_weather":
                jsonschema.validate(given_arguments, without_unenforced(WEATHER))


@pytest.mark.parametrize("tool_format", FORMATS, ids=names)
def test_beside_a_schema_an_answer_is_calls_or_json(tmp_path: Path, tool_format: ToolFormat) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, toy.CHATML), tool_format=tool_format.name)
    spec = ConstraintSpec(kind="json_schema", json_schema=SCHEMA, tools=FORCED)
    kinds = set()
    for seed in range(10):
        tokens = walk(bundle, bundle.constraint(spec), seed, free_steps=12, closing_text=CLOSING)
        message = toy.feed(bundle.output_processor(OutputOptions(tools=FORCED)), tokens)
        kinds.add(message["finish"])
        if not message["calls"]:
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
    assert kinds == {"tool_calls", "stop"}


@pytest.mark.parametrize("tool_format", [MISTRAL, MISTRAL_ARGS], ids=names)
def test_mistral_ids_are_nine_characters(tmp_path: Path, tool_format: ToolFormat) -> None:
    """The templates refuse a history with longer ones."""
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, toy.CHATML), tool_format=tool_format.name)
    text = tool_format.write_call("get_time", {})
    message = toy.run(bundle, text, OutputOptions(tools=tuple(TOOLS)))
    (piece,) = [call for delta in message["deltas"] for call in delta.tool_calls if call.name]
    assert len(piece.id) == 9
    assert piece.id.isalnum()
