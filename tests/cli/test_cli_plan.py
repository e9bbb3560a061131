"""``tandem plan``: its table, its other forms, its exit codes, and refusals in one line."""

from __future__ import annotations

import json

import pytest
from cli_outcome import Tandem

MAIN = "glm53-flash-2x64-layer-split"


def test_the_table_names_cards_verdict_and_the_peers_beside_it(tandem: Tandem) -> None:
    done = tandem("plan", "--context", "384k", "--kv", "q8", "--drafter", "dflash2")
    assert done.code == 0
    for word in ("cuda:0", "cuda:1", "It fits", "1,048,576", "ExLlamaV3"):
        assert word in done.out


def test_json_adds_up(tandem: Tandem) -> None:
    found = json.loads(tandem("plan", "--context", "384k", "--json").out)
    assert found["verdict"] == "fits"
    assert found["context_tokens"] == 393_216
    for card in found["cards"]:
        assert card["expected_bytes"] == sum(term["bytes"] for term in card["terms"])


def test_max_context_is_one_number(tandem: Tandem) -> None:
    assert tandem("plan", "--max-context").out.strip() == "1048576"
    done = tandem("plan", "--max-context", "--recipe", MAIN, "--profile", "q8_1m")
    assert done.out.strip() == "1048576"


def test_explain_is_in_sentences(tandem: Tandem) -> None:
    done = tandem("plan", "--explain", "--recipe", MAIN, "--profile", "q8_384k")
    assert "cuda:0 holds layers 0 to" in done.out
    assert "register" in done.out
    assert "ExLlamaV3" in done.out


@pytest.mark.parametrize("profile", ["q8_384k", "q8_320k", "q8_fast", "fp16", "mtp", "q8_1m"])
def test_every_profile_fits_the_cards_it_was_written_for(tandem: Tandem, profile: str) -> None:
    assert tandem("plan", "--recipe", MAIN, "--profile", profile).code == 0


def test_exit_codes(tandem: Tandem) -> None:
    assert tandem("plan", "--cards", "2x24GiB").code == 4
    codes = {
        tandem("plan", "--cards", f"2x{quarter / 4}GiB", "--context", "64k").code
        for quarter in range(180, 260, 2)
    }
    assert codes == {0, 3, 4}


def test_a_recipe_that_cannot_be_sized_is_unknown_with_a_reason(tandem: Tandem) -> None:
    done = tandem("plan", "--recipe", "glm53-flash-4x64", "--cards", "4x64GiB")
    assert done.code == 5
    assert "unknown; " in done.out
    assert tandem("plan", "--recipe", "glm53-flash-4x64", "--explain").code == 5


def test_448k_where_the_peer_fails_on_its_last_layer_and_ours_fits(tandem: Tandem) -> None:
    done = tandem("plan", "--context", "448k", "--kv", "q8", "--drafter", "dflash2")
    assert done.code == 0
    assert "layer 44 of 45" in done.out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "./nowhere/at-all"), "nowhere"),
        (("--cards", "two"), "two"),
        (("--cards", "2x0GiB"), "2x0GiB"),
        (("--context", "many"), "many"),
        (("--kv", "q7"), "q7"),
        (("--drafter", "oracle"), "oracle"),
        (("--split", "40,6"), "40,6"),
        (("--recipe", "nope"), "nope"),
        (("--recipe", MAIN, "--profile", "nope"), "nope"),
        (("--profile", "q8_1m"), "--profile"),
    ],
)
def test_bad_input_is_one_line(tandem: Tandem, arguments: tuple[str, ...], named: str) -> None:
    done = tandem("plan", *arguments)
    assert done.code == 2
    assert named in done.err
    assert "Traceback" not in done.err
