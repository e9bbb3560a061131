"""Structured output: any walk under the mask validates; what cannot be enforced is refused (cases O1–O8)."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import text_toy as toy
from text_walk import allowed_ids, walk

from tandem.core.errors import RequestError, TandemError
from tandem.text.bundle import ConstraintSpec, TextBundle

COLOUR = {"enum": ["red", "green", "blue"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "O1 references": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "maxItems": 4,
                "items": {
                    "type": "object",
                    "properties": {"c": {"$ref": "#/$defs/colour"}, "d": {"$ref": "#/definitions/size"}},
                    "required": ["c", "d"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["items"],
        "additionalProperties": False,
        "$defs": {"colour": COLOUR},
        "definitions": {"size": {"enum": ["S", "M"]}},
    },
    "O1 recursion": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["v"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "O2 nullable": {
        "title": "Person",
        "type": "object",
        "properties": {
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Age"},
            "colour": {"anyOf": [COLOUR, {"type": "null"}]},
            "kind": {"const": "person", "default": "person"},
        },
        "required": ["age", "kind"],
        "additionalProperties": False,
    },
    "O3 enums": {
        "type": "object",
        "properties": {
            "n": {"enum": [1, 2, 3]},
            "b": {"enum": [True, None]},
            "m": {"enum": [1.5, "x", None]},
        },
        "required": ["n", "b", "m"],
        "additionalProperties": False,
    },
    "O3 typed extras": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "properties": {"name": {"type": "string", "maxLength": 8}},
        "required": ["name"],
    },
    "bounds": {
        "type": "array",
        "items": {"type": "integer", "minimum": -5, "maximum": 120},
        "minItems": 2,
        "maxItems": 5,
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,5}-\\d+$", "maxLength": 12},
    "format": {"type": "string", "format": "date"},
    "O5 anything": {},
    "O5 any object": {"type": "object"},
    "O5 empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "number": {"type": "number"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_any_walk_validates(chatml: TextBundle, name: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(4):
        constraint = chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=schema))
        text = chatml.tokenizer.decode(walk(chatml, constraint, seed))
        jsonschema.validate(json.loads(text), schema)


def test_json_object_and_true(chatml: TextBundle) -> None:
    for seed in range(4):
        constraint = chatml.constraint(ConstraintSpec(kind="json_object"))
        assert isinstance(json.loads(chatml.tokenizer.decode(walk(chatml, constraint, seed))), dict)
    constraint = chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=True))
    json.loads(chatml.tokenizer.decode(walk(chatml, constraint, 0)))


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        False,
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"maxLength": 2}},
        {"$ref": "http://example.invalid/schema.json"},
        {"$ref": "#/$defs/missing"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "pattern": "("},
        {"type": "strange"},
        {"type": "array", "uniqueItems": True},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "string", "not": {}, "x-guidance": {"lenient": True}},
        {"enum": ["x" * 300_000]},
        {"type": "string", "pattern": "^((((a{30}){30}){30}){30})$"},
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"properties": 3},
        {"type": 3},
        {"anyOf": "x"},
        {"\ud800": 1, "enum": []},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_o5_o6_what_cannot_be_enforced_is_refused(chatml: TextBundle, schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=schema))
    assert caught.value.status == 400
    assert caught.value.param == "response_format"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


def test_o6_deep_nesting_is_refused(chatml: TextBundle) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nested"):
        chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=schema))


def test_o6_a_large_honest_schema_is_taken(chatml: TextBundle) -> None:
    names = [f"field_{number}" for number in range(500)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    constraint = chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=schema))
    text = chatml.tokenizer.decode(walk(chatml, constraint, 0, max_steps=30_000))
    jsonschema.validate(json.loads(text), schema)


def test_o8_whitespace_is_bounded(chatml: TextBundle) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}},
        "required": ["a"],
        "additionalProperties": False,
    }
    constraint = chatml.constraint(ConstraintSpec(kind="json_schema", json_schema=schema))
    text = ""
    for _ in range(300):
        choices = allowed_ids(constraint.token_mask(), chatml.vocab_size)
        blank = [index for index in choices if not chatml.tokenizer.token_bytes(index).strip()]
        blank = [index for index in blank if index not in chatml.eos_token_ids]
        token = (blank or choices)[0]
        constraint.accept(token)
        if token in chatml.eos_token_ids:
            break
        text += chatml.tokenizer.decode([token])
    assert json.loads(text)
    assert max(map(len, re.findall(r"\s+", text))) <= 40


@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (ConstraintSpec(kind="regex", regex="[a-f]{3,6}-[0-9]+"), r"[a-f]{3,6}-[0-9]+"),
        (ConstraintSpec(kind="grammar", grammar='start: "yes" | "no" /[0-9]{2}/'), r"yes|no[0-9]{2}"),
        (ConstraintSpec(kind="grammar", grammar='root ::= "a"+ item\nitem ::= [x-z] | "é"'), r"a+([x-z]|é)"),
    ],
)
def test_regex_and_grammars(chatml: TextBundle, spec: ConstraintSpec, pattern: str) -> None:
    for seed in range(5):
        text = chatml.tokenizer.decode(walk(chatml, chatml.constraint(spec), seed))
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec(kind="regex", regex="("),
        ConstraintSpec(kind="regex", regex="(?=a)a"),
        ConstraintSpec(kind="regex", regex="x" * 300_000),
        ConstraintSpec(kind="regex", regex="(a{1000}){1000}"),
        ConstraintSpec(kind="grammar", grammar="start: nothing"),
        ConstraintSpec(kind="grammar", grammar='start: "open'),
        ConstraintSpec(kind="grammar", grammar="root ::= missing"),
        ConstraintSpec(kind="grammar", grammar=""),
        ConstraintSpec(kind="grammar", grammar="start: start"),
    ],
    ids=str,
)
def test_bad_grammars_are_refused(chatml: TextBundle, spec: ConstraintSpec) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.constraint(spec)
    assert caught.value.status == 400
    assert caught.value.param == "response_format"


def test_after_the_grammar_only_end_tokens_follow(chatml: TextBundle) -> None:
    constraint = chatml.constraint(ConstraintSpec(kind="json_schema", json_schema={"const": 1}))
    constraint.accept(chatml.tokenizer.encode("1")[0])
    assert set(allowed_ids(constraint.token_mask(), chatml.vocab_size)) == chatml.eos_token_ids
    with pytest.raises(TandemError):
        constraint.accept(chatml.tokenizer.encode("2")[0])


def test_several_tokens_in_a_step_and_masks_repeat(chatml: TextBundle) -> None:
    text = '{"a": [1, 2, 3], "b": {"c": null}}'
    constraint = chatml.constraint(ConstraintSpec(kind="json_object"))
    for token in chatml.tokenizer.encode(text):
        first = constraint.token_mask()
        assert constraint.token_mask() == first
        assert token in allowed_ids(first, chatml.vocab_size)
        constraint.accept(token)
    unmasked = chatml.constraint(ConstraintSpec(kind="json_object"))
    for token in chatml.tokenizer.encode(text):
        unmasked.accept(token)
    assert unmasked.token_mask() == constraint.token_mask()


def test_control_tokens_and_padding_are_never_allowed(tmp_path: Any) -> None:
    bundle = TextBundle.from_folder(toy.write_folder(tmp_path, toy.CHATML, vocab_size=700))
    constraint = bundle.constraint(ConstraintSpec(kind="regex", regex="(?s:.*)"))
    mask = constraint.token_mask()
    assert mask is not None
    assert len(mask) * 8 >= 700
    allowed = set(allowed_ids(mask, 700))
    assert max(allowed) < bundle.tokenizer.vocab_size
    assert not allowed & (bundle.tokenizer.special_token_ids - bundle.eos_token_ids)


def test_sequences_do_not_share_state(chatml: TextBundle) -> None:
    spec = ConstraintSpec(kind="json_schema", json_schema={"const": "ab"})
    first, second = chatml.constraint(spec), chatml.constraint(spec)
    before = second.token_mask()
    first.accept(chatml.tokenizer.encode('"')[0])
    assert second.token_mask() == before
