"""``tandem chat`` with typed lines: history, commands, and a server that refuses."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_outcome import Outcome, Tandem
from fake_api import FakeApi

Talk = Callable[..., Outcome]


@pytest.fixture
def talk(tandem: Tandem, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Type these lines into a chat: ``talk("Hi", "/quit", flags=["-t", "0"])``."""

    def call(*lines: str, flags: tuple[str, ...] = ()) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        return tandem("chat", "--url", api.url, *flags)

    return call


def messages(api: FakeApi) -> list[list[tuple[str, str]]]:
    return [[(m["role"], m["content"]) for m in body["messages"]] for _, body in api.requests]


def test_the_conversation_is_kept(talk: Talk, api: FakeApi) -> None:
    outcome = talk("Hi", "And you?", flags=("--system", "Be brief.", "-n", "9"))
    assert (outcome.code, outcome.out) == (0, "Hello.\nHello.\n")
    system = ("system", "Be brief.")
    first = [system, ("user", "Hi")]
    assert messages(api) == [first, [*first, ("assistant", "Hello."), ("user", "And you?")]]
    assert api.requests[0][1]["max_tokens"] == 9


def test_reset_and_system_forget(talk: Talk, api: FakeApi) -> None:
    talk("One", "/reset", "Two", "/system Rhyme.", "Three", "/quit", "never sent")
    assert messages(api) == [
        [("user", "One")],
        [("user", "Two")],
        [("system", "Rhyme."), ("user", "Three")],
    ]


def test_lines_go_on_after_a_backslash_and_empty_ones_are_skipped(talk: Talk, api: FakeApi) -> None:
    talk("", "first \\", "second", "   ")
    assert messages(api) == [[("user", "first \nsecond")]]


def test_save(talk: Talk, api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    outcome = talk("Hi", f"/save {path}", "/save /nowhere/at/all.json")
    assert json.loads(path.read_text()) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    assert f"Saved 2 messages to {path}." in outcome.err.replace("\n", "")
    assert "/nowhere/at/all.json cannot be written" in outcome.err.replace("\n", " ")


@pytest.mark.parametrize("line", ["/help", "/what", "/save"])
def test_unknown_commands_show_the_list(talk: Talk, api: FakeApi, line: str) -> None:
    assert "/reset" in talk(line).err
    assert api.requests == []


def test_reasoning_is_shown_apart(talk: Talk, api: FakeApi) -> None:
    api.pieces = [("reasoning_content", "Thinking."), ("content", "Done.")]
    outcome = talk("Hi", "Again")
    assert outcome.out == "Done.\nDone.\n"
    assert "Thinking." in outcome.err
    assert messages(api)[1][1] == ("assistant", "Done.")


def test_a_refused_turn_is_said_and_forgotten(talk: Talk, api: FakeApi) -> None:
    api.status = 400
    outcome = talk("Too long", "/quit")
    assert outcome.code == 0
    assert "max_tokens must be at least 1" in outcome.err


def test_an_interrupt_stops_the_answer_and_keeps_what_came(talk: Talk, api: FakeApi) -> None:
    api.ending = "interrupt"
    outcome = talk("Hi", "Go on")
    assert outcome.code == 0
    assert outcome.err.count("(stopped)") == 2
    assert messages(api)[1][1] == ("assistant", "Hello.")
