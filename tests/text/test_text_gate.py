"""Constraints beside reasoning and for tool calls (cases C11, C12, D8, O7)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import text_toy as toy
from text_walk import allowed_ids, walk

from tandem.core.errors import RequestError, TandemError
from tandem.core.protocols import TokenConstraint
from tandem.text.bundle import ConstraintSpec, OutputOptions, TextBundle

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "near": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "place": {"type": "object", "properties": {"x": {"type": "number"}}, "additionalProperties": False}
    },
}
TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time"}},
    {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}},
)


def accept_text(bundle: TextBundle, constraint: TokenConstraint, text: str, *, special: bool = True) -> None:
    for token in bundle.tokenizer.encode(text, special=special):
        assert token in allowed_ids(constraint.token_mask(), bundle.vocab_size)
        constraint.accept(token)


def without_unenforced(schema: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(schema).replace('"uniqueItems": true', '"title": "flags"'))


@pytest.fixture(scope="session")
def llama3_calls(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    folder = toy.write_folder(tmp_path_factory.mktemp("llama3"), toy.LLAMA3)
    return TextBundle.from_folder(folder, tool_format="llama3_json")


@pytest.mark.parametrize("name", ["glm", "chatml", "llama3_calls"])
@pytest.mark.parametrize("tool_name", [None, "get_weather", "get_time", "note"])
def test_c11_c12_forced_calls_parse_and_validate(
    request: pytest.FixtureRequest, name: str, tool_name: str | None
) -> None:
    bundle: TextBundle = request.getfixturevalue(name)
    inside = name == "glm"
    for seed in range(4):
        spec = ConstraintSpec(
            kind="tools", tools=TOOLS, tool_name=tool_name, starts_in_reasoning=inside, param="tools"
        )
        constraint = bundle.constraint(spec)
        start = bundle.tokenizer.encode("hm</think>", special=True) if inside else []
        for token in start:
            constraint.accept(token)
        tokens = start + walk(bundle, constraint, seed, free_steps=12)
        options = OutputOptions(tools=TOOLS, starts_in_reasoning=inside)
        message = toy.feed(bundle.output_processor(options), tokens)
        assert message["finish"] == "tool_calls"
        assert message["content"] == ""
        assert message["calls"]
        if tool_name is not None:
            assert [call["name"] for call in message["calls"]] == [tool_name]
        for call in message["calls"]:
            arguments = json.loads(call["arguments"])
            if call["name"] == "get_weather":
                jsonschema.validate(arguments, without_unenforced(WEATHER))
            assert call["name"] != "get_time" or arguments == {}


@pytest.mark.parametrize("name", ["glm", "chatml", "llama3_calls"])
def test_beside_a_schema_an_answer_is_calls_or_json(request: pytest.FixtureRequest, name: str) -> None:
    bundle: TextBundle = request.getfixturevalue(name)
    spec = ConstraintSpec(kind="json_schema", json_schema=SCHEMA, tools=TOOLS)
    kinds = set()
    for seed in range(12):
        tokens = walk(bundle, bundle.constraint(spec), seed, free_steps=12)
        message = toy.feed(bundle.output_processor(OutputOptions(tools=TOOLS)), tokens)
        kinds.add(message["finish"])
        if message["finish"] == "tool_calls":
            assert message["content"] == ""
            assert all(isinstance(json.loads(call["arguments"]), dict) for call in message["calls"])
        else:
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
    assert kinds == {"tool_calls", "stop"}


def test_parallel_calls_can_be_forbidden(chatml: TextBundle) -> None:
    spec = ConstraintSpec(kind="tools", tools=TOOLS, parallel_tool_calls=False)
    for seed in range(6):
        tokens = walk(chatml, chatml.constraint(spec), seed, free_steps=200)
        assert len(toy.feed(chatml.output_processor(OutputOptions(tools=TOOLS)), tokens)["calls"]) == 1


def test_a_strict_tool_that_cannot_be_enforced_is_refused(chatml: TextBundle, tmp_path: Path) -> None:
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": WEATHER}}
    with pytest.raises(RequestError, match="uniqueItems") as caught:
        chatml.constraint(ConstraintSpec(kind="tools", tools=(strict,), param="tools"))
    assert caught.value.param == "tools"
    with pytest.raises(RequestError) as caught:
        chatml.constraint(ConstraintSpec(kind="tools", tools=TOOLS, tool_name="nope"))
    assert caught.value.param == "tool_choice"
    other = TextBundle.from_folder(toy.write_folder(tmp_path, toy.CHATML), tool_format="none")
    with pytest.raises(RequestError, match="no tool-call format"):
        other.constraint(ConstraintSpec(kind="tools", tools=TOOLS, param="tools"))


def test_o7_json_begins_after_reasoning(glm: TextBundle) -> None:
    spec = ConstraintSpec(kind="json_schema", json_schema=SCHEMA, starts_in_reasoning=True)
    for seed in range(8):
        constraint = glm.constraint(spec)
        source = random.Random(seed)
        thought = []
        for _ in range(30):
            choices = allowed_ids(constraint.token_mask(), glm.vocab_size)
            assert not set(choices) & glm.eos_token_ids
            token = source.choice(choices)
            constraint.accept(token)
            thought.append(token)
            if token == glm.tokenizer.token_id("</think>"):
                break
        else:
            accept_text(glm, constraint, "</think>")
            thought += glm.tokenizer.encode("</think>", special=True)
        tokens = thought + walk(glm, constraint, seed)
        message = toy.feed(glm.output_processor(OutputOptions(starts_in_reasoning=True)), tokens)
        jsonschema.validate(json.loads(message["content"]), SCHEMA)


def test_o7_a_tag_spelled_in_letters_counts_too(glm: TextBundle) -> None:
    spec = ConstraintSpec(kind="json_schema", json_schema=SCHEMA, starts_in_reasoning=True)
    constraint = glm.constraint(spec)
    accept_text(glm, constraint, "so {</think>", special=False)
    accept_text(glm, constraint, '\n\n{"answer": 51}')
    assert set(allowed_ids(constraint.token_mask(), glm.vocab_size)) == glm.eos_token_ids


def test_o7_text_cannot_slip_past_on_the_tags_last_token(tmp_path: Path) -> None:
    """A vocabulary with a token that ends the tag and begins the answer."""
    definition = json.loads(toy.definition())
    vocabulary = definition["model"]["vocab"]
    sneaky = len(vocabulary) + len(toy.TAGS)
    vocabulary[">sneak"] = sneaky
    folder = toy.write_folder(tmp_path, toy.GLM)
    definition["added_tokens"] = [
        token for token in definition["added_tokens"] if token["content"] not in ("<think>", "</think>")
    ]
    (folder / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    bundle = TextBundle.from_folder(folder)
    assert bundle.tokenizer.token_bytes(sneaky) == b">sneak"
    constraint = bundle.constraint(ConstraintSpec(kind="json_object", starts_in_reasoning=True))
    assert sneaky in allowed_ids(constraint.token_mask(), bundle.vocab_size)
    accept_text(bundle, constraint, "x</think", special=False)
    allowed = allowed_ids(constraint.token_mask(), bundle.vocab_size)
    assert sneaky not in allowed
    assert bundle.tokenizer.encode(">")[0] in allowed


def test_a_model_that_opens_reasoning_itself(glm: TextBundle) -> None:
    spec = ConstraintSpec(kind="json_schema", json_schema=SCHEMA, may_open_reasoning=True)
    opened = glm.constraint(spec)
    accept_text(glm, opened, '<think>anything {"</think>\n{"answer": 3}')
    direct = glm.constraint(spec)
    accept_text(glm, direct, '{"answer": 3}')
    closed = glm.constraint(ConstraintSpec(kind="json_schema", json_schema=SCHEMA))
    assert glm.tokenizer.token_id("<think>") not in allowed_ids(closed.token_mask(), glm.vocab_size)
    for constraint in (opened, direct):
        assert set(allowed_ids(constraint.token_mask(), glm.vocab_size)) == glm.eos_token_ids


def reason_under_budget(bundle: TextBundle, spec: ConstraintSpec, text: str, answer: str) -> dict[str, Any]:
    """A model that would write ``text`` as its reasoning for ever and ``answer`` after it."""
    constraint = bundle.constraint(spec)
    wanted = iter(bundle.tokenizer.encode(text, special=False) * 50)
    close = bundle.tokenizer.token_id("</think>")
    tokens: list[int] = []
    while not tokens or tokens[-1] != close:
        choices = allowed_ids(constraint.token_mask(), bundle.vocab_size)
        token = next(wanted)
        tokens.append(token if token in choices else choices[0])
        constraint.accept(tokens[-1])
    for token in bundle.tokenizer.encode(answer):
        assert token in allowed_ids(constraint.token_mask(), bundle.vocab_size)
        constraint.accept(token)
        tokens.append(token)
    processor = bundle.output_processor(OutputOptions(starts_in_reasoning=True))
    message = toy.feed(processor, tokens)
    return {**message, "reasoning_tokens": processor.reasoning_tokens, "mask": constraint.token_mask()}


@pytest.mark.parametrize("budget", [0, 1, 5, 64])
@pytest.mark.parametrize("text", ["thinking on and on ", "🧑\u200d🚀龘"])
def test_d8_the_budget_closes_reasoning(glm: TextBundle, budget: int, text: str) -> None:
    spec = ConstraintSpec(starts_in_reasoning=True, reasoning_budget_tokens=budget)
    message = reason_under_budget(glm, spec, text, "The answer.")
    assert budget <= message["reasoning_tokens"] <= budget + 16
    assert message["content"] == "The answer."
    assert "\ufffd" not in message["reasoning"]
    allowed = set(allowed_ids(message["mask"], glm.vocab_size))
    assert not allowed & {glm.tokenizer.token_id("<think>"), glm.tokenizer.token_id("</think>")}
    assert glm.eos_token_ids <= allowed


def test_d8_an_answer_follows_the_forced_end(glm: TextBundle) -> None:
    constraint = glm.constraint(ConstraintSpec(starts_in_reasoning=True, reasoning_budget_tokens=0))
    accept_text(glm, constraint, "</think>")
    assert not set(allowed_ids(constraint.token_mask(), glm.vocab_size)) & glm.eos_token_ids
    accept_text(glm, constraint, "\nYes")
    assert glm.eos_token_ids <= set(allowed_ids(constraint.token_mask(), glm.vocab_size))


def test_d8_a_budget_that_is_not_reached_changes_nothing(glm: TextBundle) -> None:
    constraint = glm.constraint(ConstraintSpec(starts_in_reasoning=True, reasoning_budget_tokens=64))
    for token in glm.tokenizer.encode("short</think>Answer with <think>", special=True):
        assert constraint.token_mask() is None
        constraint.accept(token)


def test_d8_budget_and_grammar_together(glm: TextBundle) -> None:
    spec = ConstraintSpec(
        kind="json_schema", json_schema=SCHEMA, starts_in_reasoning=True, reasoning_budget_tokens=7
    )
    message = reason_under_budget(glm, spec, "no end ", '{"answer": 51}')
    assert message["reasoning_tokens"] <= 7 + 16
    assert json.loads(message["content"]) == {"answer": 51}


@pytest.mark.parametrize("spelled", [True, False])
def test_d8_budget_when_the_model_opens_reasoning(glm: TextBundle, spelled: bool) -> None:
    constraint = glm.constraint(ConstraintSpec(may_open_reasoning=True, reasoning_budget_tokens=3))
    accept_text(glm, constraint, "<think>", special=not spelled)
    close = glm.tokenizer.token_id("</think>")
    for token in glm.tokenizer.encode(" one two three four"):
        if allowed_ids(constraint.token_mask(), glm.vocab_size) == [close]:
            break
        constraint.accept(token)
    assert allowed_ids(constraint.token_mask(), glm.vocab_size) == [close]
    with pytest.raises(TandemError):
        constraint.accept(0)


def test_d8_a_budget_needs_a_model_that_reasons(chatml: TextBundle) -> None:
    with pytest.raises(RequestError) as caught:
        chatml.constraint(ConstraintSpec(reasoning_budget_tokens=5, param="thinking_budget"))
    assert caught.value.status == 400
    assert caught.value.param == "thinking_budget"
