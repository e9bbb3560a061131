"""Constraints through HTTP: cases O1-O3, O5-O8 and the extras. What grammars do is the text room's to prove;
here: they are built before the first byte, reach the engine, begin after reasoning, and errors have names."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from harness import Opens, StubServer, assert_error
from stub_engine import Script, say
from stub_model import GLM_TEMPLATE

pytestmark = pytest.mark.anyio

COLOUR = {"$defs": {"C": {"enum": ["red", "blue"]}}}
TREE = {
    "$defs": {
        "T": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/T"}},
            },
            "required": ["v", "kids"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/T",
}
SCHEMAS: dict[str, Any] = {
    "o1 enum behind ref": {
        **COLOUR, "type": "array", "minItems": 1, "maxItems": 2,
        "items": {"type": "object", "properties": {"a": {"$ref": "#/$defs/C"}, "b": {"$ref": "#/$defs/C"}},
                  "required": ["a", "b"], "additionalProperties": False},
    },
    "o1 recursive": TREE,
    "o2 optional": {
        "type": "object", "title": "T", "required": ["n", "k"], "additionalProperties": False,
        "properties": {
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "N"},
            "k": {"const": "fixed"},
        },
    },
    "o3 numbers": {"enum": [1, 2, 3]},
    "o3 mixed": {"enum": [True, None]},
    "o3 map": {
        "type": "object", "additionalProperties": {"type": "integer"},
        "properties": {"id": {"type": "string"}}, "required": ["id"],
    },
    "o5 object": {"type": "object"},
    "o5 closed": {"type": "object", "properties": {}, "additionalProperties": False},
    "o5 anything": {},
}  # fmt: skip


HINTS = {"o3 map": '{"id": "a", "x": 1}'}
"""What the stub would say; by itself it does not find its way to a required key among free ones."""


def as_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("name", SCHEMAS)
async def test_o1_o2_o3_o5_answers_validate(opens: Opens, name: str) -> None:
    async with opens({"q": say(HINTS.get(name, "Sure! ```json {"))}) as server:
        fields = {"response_format": as_format(SCHEMAS[name]), "max_tokens": 300}
        joined = await server.both("q", **fields)
        assert joined.reason == "stop"
        jsonschema.validate(json.loads(joined.content), SCHEMAS[name])
        same = await server.choice("q", guided_json=json.dumps(SCHEMAS[name]), max_tokens=300)
        assert same["message"]["content"] == joined.content


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("schema", [{"enum": []}, False, {"type": "strnig"}, {"not": {"type": "string"}}])
async def test_o5_o6_what_cannot_be_met_or_compiled(server: StubServer, schema: Any, stream: bool) -> None:
    response = await server.chat(response_format=as_format(schema), stream=stream)
    assert_error(response, 400)
    assert response.json()["error"]["param"].startswith("response_format")
    await server.alive()


async def test_o6_a_missing_schema(server: StubServer) -> None:
    for described in (None, {}, {"name": "x"}, {"schema": None}):
        response = await server.chat(response_format={"type": "json_schema", "json_schema": described})
        assert_error(response, 400, param="response_format.json_schema.schema")
    assert_error(await server.chat(response_format=as_format("x")), 400)


async def test_o7_reasoning_first_then_json(opens: Opens) -> None:
    script = Script((b"17 * 3 is {51}", "</think>", b"The answer is 51"))
    schema = {
        "type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
        "additionalProperties": False,
    }  # fmt: skip
    async with opens({"17*3": script}, template=GLM_TEMPLATE) as server:
        for wanted in (as_format(schema), {"type": "json_object"}):
            joined = await server.both("17*3", response_format=wanted, max_tokens=300)
            assert joined.reasoning == "17 * 3 is {51}"
            assert isinstance(json.loads(joined.content), dict)
        plain = await server.both("17*3", response_format={"type": "text"})
        assert plain.content == "The answer is 51"


async def test_o8_whitespace_is_bounded(opens: Opens) -> None:
    blanks = Script((b"\n", b"\t", b"\n"), repeats=True, ends=False)
    async with opens({"q": blanks}) as server:
        choice = await server.choice("q", response_format={"type": "json_object"}, max_tokens=400)
        assert choice["finish_reason"] == "stop"
        assert isinstance(json.loads(choice["message"]["content"]), dict)
        assert not re.search(r"\s{41}", choice["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"guided_regex": "[0-9]{3}-x"}, None),
        ({"structured_outputs": {"regex": "[0-9]{3}-x"}}, None),
        ({"guided_choice": ['ja "q"', "nein"]}, {'ja "q"', "nein"}),
        ({"structured_outputs": {"choice": ["ja", "nein"]}}, {"ja", "nein"}),
        ({"guided_grammar": 'start: "x" | "yy"'}, {"x", "yy"}),
        ({"structured_outputs": {"grammar": 'start: "x" | "yy"'}}, {"x", "yy"}),
        ({"structured_outputs": {"json": {"const": 5}}}, {"5"}),
    ],
)
async def test_guided_extras(opens: Opens, fields: dict[str, Any], expected: set[str] | None) -> None:
    async with opens({"q": say("anything but that")}) as server:
        content = (await server.choice("q", **fields, max_tokens=50))["message"]["content"]
        if expected is None:
            assert content[:3].isdecimal()
            assert content[3:] == "-x"
        else:
            assert content in expected
        text = (await server.complete("q", **fields, max_tokens=50)).json()["choices"][0]["text"]
        assert text == content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
async def test_constraints_that_cannot_be(server: StubServer, fields: dict[str, Any], param: str) -> None:
    assert_error(await server.chat(**fields, stream=True), 400, param=param)
