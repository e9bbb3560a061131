"""Standings, lint rules, profiles, configurations, exports and the user's files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import yaml
from recipes_brute import TODAY
from test_recipes_files import MINIMAL, read

from tandem.core.errors import SettingsError, UserError
from tandem.core.options import SettingsLayer
from tandem.recipes import export
from tandem.recipes.configuration import KEYS, resolve
from tandem.recipes.files import load_catalogue
from tandem.recipes.lint import lint, problems
from tandem.recipes.profiles import effective_profile, named_profile
from tandem.recipes.status import engine_majors, number_standing, standing_of
from tandem.recipes.userdata import add_recipe, lint_file
from tandem.recipes.yaml_lines import RecipeFileError

LOADED = load_catalogue(None)
MAIN = LOADED.recipes["glm53-flash-2x64-layer-split"].recipe
DAY = TODAY.toordinal()

PROVEN = (
    MINIMAL.replace(
        "engine: {name: exllamav3}", "engine: {name: exllamav3, version: 1.5.4, commit: abc123}"
    ).replace("revision: 1\n", 'revision: 1\nrevised: "2026-09-01"\n')
    + """\
steps: [{title: Serve, command: serve}]
tested: [{by: author, date: "2026-09-02"}]
confirmations:
- by: somebody
  date: "2026-09-10"
  outcome: serves
  profile: only
  revision: 1
  machine: {card: CMP 170HX, cards: 2}
"""
)


def standing(text: str):
    recipe = read(text)
    return standing_of(recipe, DAY, engine_majors([recipe]))


def test_proven_needs_all_of_it():
    assert standing(PROVEN).status == "proven"
    assert standing(PROVEN).missing == ()


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        (', revision: "5933112"', "", "weights' revision"),
        (", commit: abc123", "", "commit or image digest"),
        ("steps: [{title: Serve, command: serve}]\n", "", "no steps"),
        ('tested: [{by: author, date: "2026-09-02"}]\n', "", "saw it start"),
        ("outcome: serves", "outcome: boots", "says only 'boots'"),
        ("outcome: serves", "outcome: null", "does not say what it showed"),
        ("  profile: only\n", "", "names no profile"),
        ("card: CMP 170HX, cards: 2}", "card: A100, cards: 2}", "not for CMP 170HX"),
        ("card: CMP 170HX, cards: 2}", "card: CMP 170HX, cards: 3}", "not for 2 cards"),
        ("  revision: 1\n", "  revision: 2\n", "not for revision 1"),
        ('date: "2026-09-10"', 'date: "2026-08-10"', "older than the revision"),
        ('revised: "2026-09-01"\n', "", "is not dated"),
        ("  outcome: serves", "  independent: false\n  outcome: serves", "no independent confirmation"),
    ],
)
def test_each_missing_piece_is_named(old, new, missing):
    assert old in PROVEN
    found = standing(PROVEN.replace(old, new))
    assert found.status == "reported"
    assert any(missing in text for text in found.missing), found.missing


def test_overlays():
    disputed = PROVEN + '- {by: other, date: "2026-09-11", outcome: disputes}\n'
    assert standing(disputed).overlays == ("disputed",)
    assert standing(disputed.replace("disputes", "fails")).overlays == ("broken",)
    settled = disputed.replace("outcome: disputes", 'outcome: disputes, resolved: "2026-09-20"')
    assert standing(settled).overlays == ()
    newer = read(PROVEN.replace("1.5.4", "2.0.0").replace("id: mine", "id: newer"))
    old = read(PROVEN)
    assert standing_of(old, DAY, engine_majors([old, newer])).overlays == ("stale",)


def test_numbers_have_a_standing_of_their_own():
    by_id = {item.id: item for item in MAIN.measurements}
    assert number_standing(MAIN, by_id["decode-68x0"]) == "deviating"
    assert number_standing(MAIN, by_id["ttft-1k-cold"]) == "single"
    text = (
        PROVEN
        + "measurements:\n"
        + "".join(
            f"- {{id: m{i}, metric: decode, value: {number}, unit: tok/s, profile: only, by: {by}}}\n"
            for i, (number, by) in enumerate([(60, "a"), (65, "b"), (70, "a")])
        )
    )
    recipe = read(text)
    assert [number_standing(recipe, item) for item in recipe.measurements] == [
        "reproduced",
        "reproduced",
        "reproduced",
    ]
    alone = read(text.replace("by: b", "by: a"))
    assert {number_standing(alone, item) for item in alone.measurements} == {"single"}


def test_shipped_recipes_have_no_lint_errors_and_the_known_warnings():
    found = lint(LOADED, DAY)
    assert not [item.text() for item in found if item.level == "error"]
    rules = {(Path(item.file).stem, item.rule) for item in found}
    assert ("glm53-flash-2x64-layer-split", "confirmed-before-test") in rules
    assert ("glm53-flash-2x64-layer-split", "headline-deviates") in rules
    assert ("glm53-flash-2x64-layer-split", "download-as-memory") in rules
    assert ("glm53-flash-2x64-tp2", "above-capacity") in rules
    capacity = next(item for item in found if item.rule == "above-capacity")
    assert "64.4" in Path(capacity.file).read_text().splitlines()[capacity.line - 1]


NUMBER = "measurements:\n- {id: m, metric: decode, value: 60, unit: tok/s, source: here}\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (MINIMAL + NUMBER.replace(", unit: tok/s", ""), "missing-unit"),
        (MINIMAL + NUMBER.replace("tok/s", "GiB"), "wrong-unit"),
        (MINIMAL + NUMBER.replace(", source: here", ""), "no-source"),
        (MINIMAL + NUMBER.replace("value: 60, ", ""), "no-value"),
        (MINIMAL + NUMBER.replace("here", "there"), "dangling"),
        (MINIMAL + NUMBER + NUMBER.splitlines()[1] + "\n", "twice"),
        (MINIMAL + "headline: nothing\n", "dangling"),
        (MINIMAL + "related: [{kind: extends, recipe: nothing}]\n", "dangling"),
        (MINIMAL.replace("  default: true", "  default: false"), "one-default"),
        (MINIMAL.replace("  default: true", "  default: true\n  extends: only"), "circle"),
        (MINIMAL.replace("  default: true", "  default: true\n  extends: nothing"), "dangling"),
        (MINIMAL.replace("  default: true", "  default: true\n  cache_tokens: 1000"), "whole-pages"),
        (
            MINIMAL.replace("true", "true\n  cache_tokens: 256\n  max_request_tokens: 512"),
            "request-above-cache",
        ),
        (MINIMAL.replace('"5933112"', "main"), "moving-pin"),
        (MINIMAL.replace(', revision: "5933112"', ""), "unpinned"),
        (
            MINIMAL.replace("count: 2", "count: 1, exposed_gib: 64").replace(
                "exl3,", "exl3, download_gb: 125,"
            ),
            "weights-above-memory",
        ),
        (PROVEN.replace('"2026-09-10"', '"2027-09-10"'), "future-date"),
    ],
)
def test_lint_rules(text, rule):
    recipe = read(text)
    assert rule in {found[2] for found in problems(recipe, {"mine"}, DAY)}


def test_a_clean_recipe_has_no_findings_above_notes():
    assert not [found for found in problems(read(PROVEN), {"mine"}, DAY) if found[1] != "note"]


def test_profiles_extend_each_other():
    mtp = effective_profile(MAIN, named_profile(MAIN, "mtp"))
    assert (mtp.kv.value, mtp.max_request_tokens.value, mtp.drafter, mtp.draft_tokens) == (
        "fp16",
        196352,
        "mtp",
        2,
    )
    assert named_profile(MAIN, None).name == "q8_384k"
    with pytest.raises(SettingsError, match="q8_320k"):
        named_profile(MAIN, "q9")


def test_a_configuration_is_complete_and_every_value_has_a_source():
    found = resolve(
        MAIN,
        "q8_384k",
        file=SettingsLayer("tandem.yaml", {"port": 9000, "prefix_reuse": "off"}),
        environment={"TANDEM_SERVE_PORT": "9001", "TANDEM_SERVE_CHUNK_TOKENS": "4k"},
        flags={"cache_format": "q4"},
    )
    assert set(found.as_dict()) == set(KEYS)
    told = {key: (value["value"], value["source"]) for key, value in found.as_dict().items()}
    assert told["index_keys"] == ("pooled", "default")
    assert told["model"] == ("turboderp/GLM-5.3-Flash-exl3", "recipe glm53-flash-2x64-layer-split")
    assert told["context_tokens"] == (392960, "profile q8_384k")
    assert told["prefix_reuse"] == ("off", "tandem.yaml")
    assert told["port"] == (9001, "TANDEM_SERVE_PORT")
    assert told["chunk_tokens"] == (4096, "TANDEM_SERVE_CHUNK_TOKENS")
    assert told["cache_format"] == ("q4", "--cache-format")
    assert len(found.lines()) == len(KEYS)


@pytest.mark.parametrize(
    "layer",
    [
        {"file": SettingsLayer("f", {"contxt_tokens": 1})},
        {"environment": {"TANDEM_SERVE_COLOUR": "red"}},
        {"flags": {"cache_format": "q5"}},
        {"flags": {"port": "eighty"}},
        {"flags": {"port": True}},
        {"flags": {"model": 5}},
    ],
)
def test_unknown_keys_and_values_are_errors(layer):
    with pytest.raises(SettingsError):
        resolve(MAIN, **layer)


def test_a_layout_that_is_not_served_is_refused():
    with pytest.raises(SettingsError, match="layout must be one of"):
        resolve(LOADED.recipes["glm53-flash-2x64-tp2"].recipe)


def test_csv_takes_formulas_for_text():
    recipe = read(
        MINIMAL.replace("title: Mine", "title: '=HYPERLINK(\"http://x\")'").replace("CMP 170HX", "'@card'")
    )
    row = next(csv.DictReader(io.StringIO("".join(export.csv_wide([recipe])))))
    assert row["title"].startswith("'=")
    assert row["card"] == "'@card"
    assert (row["cards"], row["cards_basis"], row["driver_basis"]) == ("2", "stated", "")
    for start in "=+-@\t\r":
        assert str(export.safe_cell(start + "x")).startswith("'")
    assert export.safe_cell(-5.0) == -5.0


def test_exports_hold_every_number():
    recipes = [held.recipe for held in LOADED.recipes.values()]
    rows = list(csv.DictReader(io.StringIO("".join(export.csv_long(recipes)))))
    assert len(rows) == sum(len(recipe.measurements) for recipe in recipes)
    assert next(row for row in rows if row["measurement"] == "prefill-change-nestaa51")["low"] == "-5.0"
    lines = [json.loads(line) for line in export.json_lines(recipes)]
    assert [line["id"] for line in lines] == [recipe.id for recipe in recipes]


def test_a_citation_is_cff():
    data = yaml.safe_load(export.citation(MAIN, LOADED.models[MAIN.model]))
    assert {"cff-version", "message", "title", "authors"} <= set(data)
    assert data["cff-version"] == "1.2.0"
    assert {"alias": "Flun"} in data["authors"]
    assert data["date-released"] == "2026-10-07" or str(data["date-released"]) == "2026-10-07"


def test_adding_a_recipe(tmp_path: Path):
    source = tmp_path / "mine.yaml"
    source.write_text(MINIMAL)
    recipe, findings = add_recipe(source, tmp_path / "data", DAY)
    assert (tmp_path / "data" / "recipes" / "mine.yaml").read_text() == MINIMAL
    assert "unpinned" in {finding.rule for finding in findings}
    assert load_catalogue(tmp_path / "data").recipes[recipe.id].origin == "user"
    with pytest.raises(UserError, match="--replace"):
        add_recipe(source, tmp_path / "data", DAY)
    add_recipe(source, tmp_path / "data", DAY, replace=True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "0 documents"),
        (MINIMAL + "---\n" + MINIMAL, "2 documents"),
        (MINIMAL.replace("glm-5.3-flash", "nobody"), "no model"),
        (MINIMAL + NUMBER.replace(", unit: tok/s", ""), "no unit"),
    ],
)
def test_a_recipe_that_cannot_be_added_leaves_nothing_behind(tmp_path: Path, text, match):
    source = tmp_path / "mine.yaml"
    source.write_text(text)
    with pytest.raises((UserError, RecipeFileError), match=match):
        add_recipe(source, tmp_path / "data", DAY)
    assert not (tmp_path / "data").exists()


def test_linting_a_file_finds_what_adding_would(tmp_path: Path):
    source = tmp_path / "mine.yaml"
    source.write_text(MINIMAL.replace("glm-5.3-flash", "nobody"))
    assert [(f.line, f.rule) for f in lint_file(source, None, DAY) if f.level == "error"] == [(6, "dangling")]
    source.write_text("a: [")
    assert [f.rule for f in lint_file(source, None, DAY)] == ["unreadable"]
    with pytest.raises(UserError, match="No file"):
        lint_file(tmp_path / "nothing.yaml", None, DAY)
