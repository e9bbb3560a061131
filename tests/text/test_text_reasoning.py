"""Reasoning against content (cases B4, B5, D1, D5)."""

from __future__ import annotations

import itertools

import pytest
import text_toy as toy
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.requests import FinishReason, TokenOutput
from tandem.text.bundle import OutputOptions, TextBundle
from tandem.text.formats import THINK
from tandem.text.parser import MessageParser, TextEvent

INSIDE = OutputOptions(starts_in_reasoning=True)


def split(pieces: list[str], *, inside: bool = True, by_model: bool = True) -> tuple[str, str]:
    parser = MessageParser(reasoning=THINK, starts_in_reasoning=inside, tool_format=None, tools={})
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish(by_model=by_model)
    texts = [event for event in events if isinstance(event, TextEvent)]
    return (
        "".join(event.text for event in texts if event.channel == "reasoning"),
        "".join(event.text for event in texts if event.channel == "content"),
    )


def test_d1_every_split_in_two_and_three() -> None:
    text = "abc</think>def"
    for a, b in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        assert split([text[:a], text[a:b], text[b:]]) == ("abc", "def")
    opened = f"\n<think>{text}"
    for a, b in itertools.combinations_with_replacement(range(len(opened) + 1), 2):
        assert split([opened[:a], opened[a:b], opened[b:]], inside=False) == ("abc", "def")
        assert split([opened[:a], opened[a:b], opened[b:]]) == ("abc", "def")


@pytest.mark.parametrize("text", ["a < b, </thin air>", "x </ think> y", "<<//think", "1</thinkk>2"])
def test_d1_what_only_looks_like_a_tag(text: str) -> None:
    assert split(list(text)) == (text, "")
    assert split([f"{text}</think>z"]) == (text, "z")
    assert split(list(text), inside=False) == ("", text)


def test_d5_tags_later_in_the_answer_are_text() -> None:
    answer = "The tag <think> opens and </think> closes."
    assert split([f"r</think>{answer}"]) == ("r", answer)
    assert split([answer], inside=False) == ("", answer)


def test_whitespace_at_the_borders_belongs_to_the_tags() -> None:
    assert split(list("\nlet me\n think \n</think>\n\nYes.\n")) == ("let me\n think", "Yes.\n")
    assert split(["\n\nplain"], inside=False) == ("", "\n\nplain")


@pytest.mark.parametrize("length", range(1, 8))
def test_b5_a_tag_cut_off_leaves_no_fragment(length: int) -> None:
    assert split(["x", "</think>"[:length]], by_model=False) == ("x", "")
    assert split(["x", "</think>"[:length]], by_model=True) == ("x" + "</think>"[:length], "")
    assert split(["<think>"[: min(length, 6)]], inside=False, by_model=False) == ("", "")


@given(st.text(alphabet="a<>/think \n", max_size=30), st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_d1_any_split_gives_the_same(text: str, cuts: list[int]) -> None:
    edges = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]
    for inside in (True, False):
        assert (
            split(pieces, inside=inside) == split([text], inside=inside) == split(list(text), inside=inside)
        )


def test_b5_stops_do_not_disturb_tags(glm: TextBundle) -> None:
    for text in ("x</think>hello", "x</thi</think>hello"):
        plain = toy.run(glm, text, INSIDE)
        held = toy.run(glm, text, OutputOptions(starts_in_reasoning=True, stops=("<zzz", "</think", "think")))
        assert (plain["reasoning"], plain["content"]) == (held["reasoning"], held["content"])
        assert plain["content"] == "hello"


def test_b4_stops_act_on_the_answer_alone(glm: TextBundle) -> None:
    options = OutputOptions(starts_in_reasoning=True, stops=("\n\n",))
    message = toy.run(glm, "one\n\ntwo</think>\n\nfirst\n\nsecond", options)
    assert message["reasoning"] == "one\n\ntwo"
    assert message["content"] == "first"
    assert message["finish"] == "stop"


def test_d5_the_answer_of_a_model_without_end_is_reasoning(glm: TextBundle) -> None:
    message = toy.run(glm, "thinking and", INSIDE, reason=FinishReason.LENGTH)
    assert (message["reasoning"], message["content"]) == ("thinking and", "")


def test_reasoning_tokens_are_counted_with_their_tags(glm: TextBundle) -> None:
    ids = glm.tokenizer.encode("a b c</think>the answer", special=True)
    close = ids.index(glm.tokenizer.token_id("</think>") or 0)
    processor = glm.output_processor(INSIDE)
    for index in ids:
        processor.push(TokenOutput(index, None, False))
    assert processor.reasoning_tokens == close + 1


def test_tags_spelled_in_ordinary_tokens_are_found(glm: TextBundle) -> None:
    ids = glm.tokenizer.encode("abc</think>def", special=False)
    message = toy.feed(glm.output_processor(INSIDE), ids)
    assert (message["reasoning"], message["content"]) == ("abc", "def")


def test_completions_know_no_reasoning(glm: TextBundle) -> None:
    message = toy.run(glm, "a<think>b</think>c", OutputOptions(chat=False))
    assert message["content"] == "a<think>b</think>c"
