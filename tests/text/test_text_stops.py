"""Incremental decoding and stop strings (cases A1, A3, A4, B1, B2)."""

from __future__ import annotations

import json
import random

import pytest
import text_toy as toy
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.requests import FinishReason, TokenLogprob, TokenOutput
from tandem.text.bundle import OutputOptions, TextBundle
from tandem.text.detokenize import IncrementalDecoder
from tandem.text.stops import StopMatcher

PLAIN = OutputOptions(chat=False)
UNICODE = "🧑\u200d🚀 👩🏽\u200d💻 🇺🇦 歪 龘 한글 ไทย ß"


@given(st.text(max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_a1_characters_split_anywhere(text: str, source: random.Random) -> None:
    data = text.encode("utf-8", "replace")
    decoder = IncrementalDecoder()
    pieces, start = [], 0
    while start < len(data):
        size = source.randint(1, 5)
        pieces.append(decoder.push(data[start : start + size]))
        start += size
    assert "".join(pieces) == data.decode()
    assert not decoder.incomplete


def test_a3_a_real_replacement_character_is_not_held() -> None:
    decoder = IncrementalDecoder()
    assert decoder.push(b"a ") == "a "
    assert decoder.push(b"\xef\xbf") == ""
    assert decoder.push(b"\xbd") == "\ufffd"
    assert decoder.push(b" b") == " b"


def test_invalid_bytes_pass_at_once() -> None:
    decoder = IncrementalDecoder()
    assert decoder.push(b"\xff") == "\ufffd"
    assert decoder.push(b"\xe6\xad") == ""
    assert decoder.push(b"x") == "\ufffdx"


@pytest.mark.parametrize("limit", range(1, 41))
def test_a4_a_cut_character_is_dropped(chatml: TextBundle, limit: int) -> None:
    ids = chatml.tokenizer.encode(UNICODE)
    for options in (PLAIN, OutputOptions()):
        message = toy.feed(chatml.output_processor(options), ids[:limit], FinishReason.LENGTH)
        json.dumps(message["content"]).encode("utf-8")
        assert "\ufffd" not in message["content"]
        assert UNICODE.startswith(message["content"])
        assert message["finish"] == "length"


def feed_stops(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    passed = []
    for piece in pieces:
        passed.append(matcher.push(piece))
        if matcher.stopped:
            return "".join(passed), True
    return "".join(passed) + matcher.flush(), False


def test_b1_a_stop_spans_tokens(chatml: TextBundle) -> None:
    ids = chatml.tokenizer.encode("red green blue yellow")
    message = toy.feed(chatml.output_processor(OutputOptions(stops=("green blue",))), ids)
    assert message["content"] == "red "
    assert message["finish"] == "stop"


def test_only_a_prefix_of_a_stop_is_held() -> None:
    matcher = StopMatcher(("green blue",))
    assert matcher.push("a green") == "a "
    assert matcher.push("house") == "greenhouse"
    assert matcher.push(" gre") == " "
    assert matcher.flush() == "gre"


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300, derandomize=True, deadline=None)
def test_the_first_complete_stop_wins_however_text_is_cut(
    text: str, stops: list[str], source: random.Random
) -> None:
    whole = feed_stops(tuple(stops), [text])
    letters = feed_stops(tuple(stops), list(text))
    cuts = sorted(source.choices(range(len(text) + 1), k=5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert feed_stops(tuple(stops), pieces) == whole == letters
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        assert any(text.startswith(whole[0] + stop) for stop in stops)
        assert min(ends) <= len(text)
    else:
        assert whole == (text, False)


def test_b2_twenty_stops_cut_out_of_a_reply(chatml: TextBundle) -> None:
    reply = 'one, two, three, four, five, six, seven. Then it was done; and {"a": 1} 世界!'
    ids = chatml.tokenizer.encode(reply)
    source = random.Random(5)
    for _ in range(20):
        start = source.randrange(len(reply) - 8)
        stop = reply[start : start + source.randint(3, 8)]
        message = toy.feed(chatml.output_processor(OutputOptions(stops=(stop,))), ids)
        assert message["content"] == reply[: reply.index(stop)]
        assert message["finish"] == "stop"


def test_nothing_comes_after_a_stop(chatml: TextBundle) -> None:
    processor = chatml.output_processor(OutputOptions(stops=("b",)))
    for index in chatml.tokenizer.encode("a b c"):
        processor.push(TokenOutput(index, None, False))
    assert processor.stopped
    assert not processor.push(TokenOutput(chatml.tokenizer.encode("zzz")[0], None, False))
    assert processor.finish(FinishReason.STOP).content == ""


def test_f3_one_logprob_a_token_held_back_or_not(chatml: TextBundle) -> None:
    processor = chatml.output_processor(OutputOptions(stops=("blue moon",)))
    ids = chatml.tokenizer.encode(f"so blue {UNICODE}")
    seen = []
    for index in ids:
        delta = processor.push(TokenOutput(index, TokenLogprob(index, -0.5), False))
        assert delta
        seen += [entry.token_id for entry in delta.logprobs]
    end = next(iter(chatml.eos_token_ids))
    assert not processor.push(TokenOutput(end, TokenLogprob(end, -0.5), True))
    assert seen == ids


def test_b7_control_tokens_are_no_text(chatml: TextBundle) -> None:
    ids = chatml.tokenizer.encode("a<|im_start|>b<|user|>c", special=True)
    assert toy.feed(chatml.output_processor(PLAIN), ids)["content"] == "abc"
    kept = OutputOptions(chat=False, skip_special_tokens=False)
    assert toy.feed(chatml.output_processor(kept), ids)["content"] == "a<|im_start|>b<|user|>c"
