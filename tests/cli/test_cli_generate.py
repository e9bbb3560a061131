"""``tandem generate`` and the API client, against scripted answers."""

from __future__ import annotations

import io
import json
import sys

import pytest
from cli_outcome import Outcome, Tandem
from fake_api import TIMINGS, USAGE, FakeApi


def test_the_answer_streams_to_standard_output(tandem: Tandem, api: FakeApi) -> None:
    assert tandem("generate", "Say hello.", "--url", api.url) == Outcome(0, "Hello.\n", "")
    [(path, body)] = api.requests
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "Say hello."}]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("fake-model", 512, True)
    assert "temperature" not in body


def test_sampling_and_the_system_message_are_sent(tandem: Tandem, api: FakeApi) -> None:
    tandem(
        "generate", "hi", "--url", f"{api.url}/v1/", "--system", "Be brief.", "-n", "5", "-t", "0",
        "--top-p", "0.9", "--seed", "7", "--stop", "a", "--stop", "b",
    )  # fmt: skip
    body = api.requests[0][1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert [body[name] for name in ("max_tokens", "temperature", "top_p", "seed", "stop")] == [
        5, 0.0, 0.9, 7, ["a", "b"],
    ]  # fmt: skip


def test_json_has_usage_and_timings(tandem: Tandem, api: FakeApi) -> None:
    api.pieces = [("reasoning_content", "Hm."), ("content", "Yes")]
    outcome = tandem("generate", "hi", "--json", "--url", api.url)
    assert json.loads(outcome.out) == {
        "model": "fake-model",
        "content": "Yes",
        "reasoning": "Hm.",
        "finish_reason": "stop",
        "usage": USAGE,
        "timings": TIMINGS,
    }


def test_raw_continues_a_text(tandem: Tandem, api: FakeApi) -> None:
    assert tandem("generate", "--raw", "Once", "--url", api.url).out == "Hello.\n"
    path, body = api.requests[0]
    assert (path, body["prompt"]) == ("/v1/completions", "Once")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_can_be_piped_in(
    tandem: Tandem, api: FakeApi, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    tandem("generate", *arguments, "--url", api.url)
    assert api.requests[0][1]["messages"][0]["content"] == "from a pipe\n"


def test_an_empty_pipe_is_refused(tandem: Tandem, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    outcome = tandem("generate", "--url", api.url)
    assert outcome.code == 2
    assert "standard input is empty" in outcome.err


def test_keys_come_from_the_flag_or_the_environment(
    tandem: Tandem, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.key = "secret"
    outcome = tandem("generate", "hi", "--url", api.url)
    assert outcome.code == 2
    assert outcome.err == "tandem: Wrong API key; try: set TANDEM_API_KEY\n"
    assert tandem("generate", "hi", "--url", api.url, "--api-key", "secret").code == 0
    monkeypatch.setenv("TANDEM_API_KEY", "secret")
    assert tandem("generate", "hi", "--url", api.url).code == 0


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"status": 400}, 2, "max_tokens must be at least 1"),
        ({"status": 502, "error_body": b"<html>Bad gateway</html>"}, 2, "answered with HTTP status 502"),
        ({"ending": "error"}, 1, "The engine has failed: out of luck"),
        ({"ending": "cut"}, 1, "The server ended the answer early"),
    ],
)
def test_what_goes_wrong_on_the_server_is_one_line(
    tandem: Tandem, api: FakeApi, change: dict[str, object], code: int, said: str
) -> None:
    for name, value in change.items():
        setattr(api, name, value)
    outcome = tandem("generate", "hi", "--url", api.url)
    assert outcome.code == code
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
