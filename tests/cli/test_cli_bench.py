"""``tandem bench`` against an endpoint whose timings are known."""

from __future__ import annotations

import json
from pathlib import Path

from cli_outcome import Tandem
from fake_api import FakeApi

FLAGS = ("--prompt-tokens", "40", "--decode-tokens", "11", "--streams", "3", "--repeats", "2")


def test_the_record_holds_the_servers_own_times(tandem: Tandem, api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    outcome = tandem("bench", "--url", api.url, *FLAGS, "--json", "--out", str(path))
    assert outcome.code == 0
    record = json.loads(outcome.out)
    assert record == json.loads(path.read_text())
    results = record["results"]
    # 11 tokens, the first of which belongs to the prompt's time, in 200 ms.
    assert results["decode, 1 stream"] == {"unit": "tokens/s", "median": 50.0, "samples": [50.0, 50.0]}
    assert results["decode, each of 3 streams"]["median"] == 50.0
    assert results["prefill, 40 tokens"]["median"] == 100.0
    assert results["first token, same prompt"]["unit"] == "ms"
    assert "ceiling" not in record


def test_prompts_have_the_length_asked_for_and_repeat_only_where_meant(tandem: Tandem, api: FakeApi) -> None:
    tandem("bench", "--url", api.url, *FLAGS)
    bodies = [body for path, body in api.requests if path == "/v1/completions"]
    lengths = [len(body["prompt"]) for body in bodies]
    assert lengths == [16, 16, 16, 40, 40, 40, 40] + [16] * 6
    assert [body["max_tokens"] for body in bodies] == [4, 11, 11, 2, 2, 2, 2] + [11] * 6
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in bodies)


def test_the_table_has_medians(tandem: Tandem, api: FakeApi) -> None:
    outcome = tandem("bench", "--url", api.url, *FLAGS)
    assert "decode, 1 stream" in outcome.out
    assert "50.0" in outcome.out


def test_what_cannot_be_measured_is_refused(tandem: Tandem, api: FakeApi, tmp_path: Path) -> None:
    api.context = 30
    outcome = tandem("bench", "--url", api.url, *FLAGS)
    assert outcome.code == 2
    assert "The workload needs 42 tokens of context; found: 30 are served" in outcome.err
    api.context = 4096
    api.with_timings = False
    outcome = tandem("bench", "--url", api.url, *FLAGS)
    assert outcome.code == 1
    assert "reports no timings" in outcome.err


def test_a_bench_confirms_a_recipe(tandem: Tandem, api: FakeApi) -> None:
    recipe = "smollm2-135m-demo"
    outcome = tandem("bench", "--url", api.url, *FLAGS, "--record", recipe, "--by", "me", "--profile", "demo")
    assert outcome.code == 0, outcome.err
    assert "Confirmation of smollm2-135m-demo written to" in outcome.err
    shown = json.loads(tandem("recipes", "show", recipe, "--json").out)
    text = json.dumps(shown)
    assert '"by": "me"' in text
    assert "tok/s" in text
    findings = tandem("recipes", "lint").out
    assert not [line for line in findings.splitlines() if "error" in line], findings


def test_a_bench_of_an_unknown_recipe_measures_nothing(tandem: Tandem, api: FakeApi) -> None:
    outcome = tandem("bench", "--url", api.url, *FLAGS, "--record", "nope")
    assert outcome.code != 0
    assert "nope" in outcome.err
    assert not api.requests


def test_a_record_that_cannot_be_written_is_one_line(tandem: Tandem, api: FakeApi) -> None:
    outcome = tandem("bench", "--url", api.url, *FLAGS, "--out", "/nowhere/at/all.json")
    assert outcome.code == 2
    assert "/nowhere/at/all.json cannot be written" in outcome.err
