"""Reading files: what is wrong is named by file, line and field, and hides nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.recipes.export import document, yaml_documents
from tandem.recipes.files import load_catalogue, parse, shipped_folder
from tandem.recipes.schema import Recipe
from tandem.recipes.userdata import to_yaml
from tandem.recipes.values import Stated, date_span
from tandem.recipes.yaml_lines import RecipeFileError, read_yaml

MINIMAL = """\
schema_version: 1
id: mine
title: Mine
revision: 1
summary: A recipe of my own.
model: glm-5.3-flash
quant: {scheme: exl3, revision: "5933112"}
engine: {name: exllamav3}
hardware: {card: CMP 170HX, count: 2}
topology: {layout: layer_split, degree: 2}
profiles:
- name: only
  default: true
sources:
- {id: here, type: page, title: Here}
"""


def read(text: str) -> Recipe:
    return parse(Recipe, read_yaml(text, "mine.yaml")[0])


def test_the_shipped_files_read_and_write_back_the_same():
    loaded = load_catalogue(None)
    assert not loaded.problems
    assert "glm53-flash-2x64-layer-split" in loaded.recipes
    for held in loaded.recipes.values():
        again = parse(Recipe, read_yaml("".join(yaml_documents([held.recipe])), "again.yaml")[0])
        assert again == held.recipe
        assert document(again) == document(held.recipe)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "problem"),
    [
        ("scheme: exl3", "scheme: exl4", 7, "quant.scheme", "Input should be"),
        ('"5933112"', "5933112", 7, "quant.revision", "put it in quotes"),
        ("count: 2", "count: two", 9, "hardware.count", "valid integer"),
        ("  default: true", "  default: yes", 13, "profiles[0].default", "true or false"),
        ("  default: true", "  colour: red", 13, "profiles[0].colour", "unknown field"),
        ("  default: true", "  on: true", 13, "profiles[0].on", "reads as true or false"),
        ("  default: true", "  name: again", 13, "profiles[0].name", "given twice"),
        ("title: Mine\n", "", 1, "title", "missing"),
        ("revision: 1", "revision: 007", 4, "revision", "another number"),
        ("revision: 1", "revision: 12:30", 4, "revision", "another number"),
        ("schema_version: 1", "schema_version: 2", 1, "schema_version", "cannot be read"),
        ("id: mine", "id: Not A Slug", 2, "id", "lower-case"),
        ("id: mine", "id: mine.json", 2, "id", "file name"),
        ("title: Here}", "title: Here, url: 'javascript:alert(1)'}", 15, "sources[0].url", "http"),
        ("summary: A recipe", "summary: !!python/object:os.system A recipe", 5, "summary", "tags"),
        ("model: glm", "model: &a glm", None, None, None),
        ("quant: {", "quant: {{", 8, "", "not YAML"),
        ("card: CMP 170HX", "card: {basis: unresolved}", 9, "hardware.card", "needs candidates"),
        ("card: CMP 170HX", "card: {candidates: [a, b]}", 9, "hardware.card", "unresolved"),
    ],
)
def test_a_broken_file_names_file_line_and_field(old, new, line, field, problem):
    assert old in MINIMAL
    text = MINIMAL.replace(old, new)
    if line is None:
        assert read(text).model == "glm-5.3-flash"
        return
    with pytest.raises(RecipeFileError) as caught:
        read(text)
    assert (caught.value.file, caught.value.line, caught.value.where) == ("mine.yaml", line, field)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"mine.yaml:{line}: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a list",
        "a string",
        "a: &x [1]\nb: *x",
        "\x00",
        "{" * 5000,
        "? [a]\n: b",
        "a: 1\n---\nb: [",
        "é: \ud800",
    ],
)
def test_odd_documents_end_in_one_error_or_nothing(text):
    try:
        documents = read_yaml(text, "odd.yaml")
    except RecipeFileError:
        return
    for located in documents:
        with pytest.raises(RecipeFileError):
            parse(Recipe, located)


def test_one_broken_file_hides_no_other(tmp_path: Path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "good.yaml").write_text(MINIMAL)
    (folder / "bad.yaml").write_text(MINIMAL.replace("count: 2", "count: two"))
    (folder / "latin.yaml").write_bytes(b"title: \xff")
    (folder / "twice.yaml").write_text(MINIMAL)
    (folder / "model.yaml").write_text(
        MINIMAL.replace("id: mine", "id: other").replace("glm-5.3-flash", "nobody")
    )
    loaded = load_catalogue(tmp_path)
    assert loaded.recipes["mine"].origin == "user"
    assert "other" not in loaded.recipes
    told = {Path(problem.file).name: problem.where for problem in loaded.problems}
    assert told == {"bad.yaml": "hardware.count", "latin.yaml": "", "twice.yaml": "id", "model.yaml": "model"}


def test_a_users_recipe_replaces_a_shipped_one(tmp_path: Path):
    (tmp_path / "recipes").mkdir()
    text = MINIMAL.replace("id: mine", "id: glm53-flash-3x64")
    (tmp_path / "recipes" / "own.yaml").write_text(text)
    held = load_catalogue(tmp_path).recipes["glm53-flash-3x64"]
    assert (held.origin, held.recipe.title) == ("user", "Mine")


def test_stated_keeps_what_a_source_said():
    recipe = load_catalogue(None).recipes["glm53-flash-2x64-tp2"].recipe
    assert recipe.hardware.driver.candidates == (None, "610.57.04")
    assert recipe.hardware.driver.value is None
    assert recipe.vram.raw is not None
    assert recipe.vram.raw.startswith("about 62.9 / 62.3 GiB idle")
    assert recipe.profiles[0].slots.basis == "inferred"
    demo = load_catalogue(None).recipes["smollm2-135m-demo"].recipe
    assert demo.hardware.count == Stated(basis="not_applicable")


def test_every_model_of_the_page_is_in_the_register():
    models = load_catalogue(None).models
    assert {
        "glm-5.3-flash",
        "glm-5.3",
        "mimo-v2.6-flash-rl",
        "qwen3.8-27b",
        "deepseek-v4.1-flash-1017",
    } <= set(models)
    assert models["mimo-v2.6-flash-rl"].active_b.value == 15
    assert models["glm-5.3"].total_b.value is None


@pytest.mark.parametrize(
    "text", ["yes", "5933112", "0x10", "null", "", " x", "a: b", "- a", "#x", "é\n\n x", "'", "1e5", "~"]
)
def test_text_survives_yaml(text):
    assert read_yaml(to_yaml({"key": [text]}), "t.yaml")[0].data == {"key": [text]}


@pytest.mark.parametrize(
    "text", ["2026-13", "2026-02-30", "26-01-01", "2026-1-1", "today", "0000-01-01", "2026-00"]
)
def test_no_dates(text):
    with pytest.raises(ValueError, match="no date"):
        date_span(text)


def test_partial_dates_cover_their_days():
    assert date_span("2024-02")[1] - date_span("2024-02")[0] == 29
    assert date_span("2025")[1] - date_span("2025")[0] == 365


def test_the_shipped_folder_is_part_of_the_package():
    assert (shipped_folder() / "models.yaml").is_file()
