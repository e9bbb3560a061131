"""The user's own recipes and confirmations: YAML files beside the shipped ones, which no upgrade touches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import yaml

from tandem.core.errors import UserError
from tandem.recipes.files import (
    Loaded,
    RecipeFile,
    load_catalogue,
    parse,
    user_confirmations_folder,
    user_recipes_folder,
)
from tandem.recipes.lint import Finding, lint
from tandem.recipes.measurement import Confirmation, UserConfirmation
from tandem.recipes.query_error import UnknownRecipeError
from tandem.recipes.schema import Recipe
from tandem.recipes.yaml_lines import Located, RecipeFileError, read_yaml


def add_recipe(
    source: Path, data_dir: Path, today: int, *, replace: bool = False
) -> tuple[Recipe, list[Finding]]:
    """Check a recipe file and copy it, word for word, to the user's recipes.

    Returns the recipe and what the lint says of it. Raises RecipeFileError for a file that cannot be read,
    UserError for an id that the user already has (unless ``replace``) and for lint errors.
    """
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"No file {source}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{source} cannot be read", found=str(error)) from error
    documents = read_yaml(text, str(source))
    if len(documents) != 1:
        raise RecipeFileError(str(source), 1, "", f"one recipe is wanted, {len(documents)} documents found")
    recipe = parse(Recipe, documents[0])
    target = user_recipes_folder(data_dir) / f"{recipe.id}.yaml"
    if target.exists() and not replace:
        raise UserError(f"You already have a recipe {recipe.id!r}", found=str(target), remedy="--replace")
    loaded = load_catalogue(data_dir)
    if recipe.model not in loaded.models:
        line = documents[0].line_of(("model",))
        known = ", ".join(sorted(loaded.models))
        raise RecipeFileError(str(source), line, "model", f"no model {recipe.model!r} in the register", known)
    findings = _lint_alone(recipe, documents[0], loaded, today)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise UserError(errors[0].text(), remedy="tandem recipes lint FILE shows all findings")
    write_file(target, text)
    return recipe, findings


def lint_file(path: Path, data_dir: Path | None, today: int) -> list[Finding]:
    """The findings of one recipe file that is not in the catalogue."""
    try:
        documents = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        raise UserError(f"No file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read", found=str(error)) from error
    except RecipeFileError as error:
        return lint(Loaded({}, {}, (error,)), today)
    loaded = load_catalogue(data_dir)
    findings = []
    for document in documents:
        try:
            recipe = parse(Recipe, document)
        except RecipeFileError as error:
            findings += lint(Loaded({}, {}, (error,)), today)
            continue
        if recipe.model not in loaded.models:
            problem = f"no model {recipe.model!r} in the register"
            line = document.line_of(("model",))
            findings.append(Finding(str(path), line, "model", "error", "dangling", problem))
        findings += _lint_alone(recipe, document, loaded, today)
    return findings


def add_confirmation(recipe_id: str, confirmation: Confirmation, data_dir: Path) -> Path:
    """Write a confirmation to the user's folder; returns the file. Raises UnknownRecipeError."""
    loaded = load_catalogue(data_dir)
    if recipe_id not in loaded.recipes:
        raise UnknownRecipeError(recipe_id, tuple(sorted(loaded.recipes))[:5])
    document = UserConfirmation(schema_version=1, recipe=recipe_id, confirmation=confirmation)
    text = to_yaml(document.model_dump(mode="json", exclude_defaults=True))
    folder = user_confirmations_folder(data_dir)
    for number in range(1, 10_000):
        target = folder / f"{recipe_id}--{confirmation.date}--{number}.yaml"
        if not target.exists():
            write_file(target, text)
            return target
    raise UserError(f"Too many confirmations of {recipe_id} on {confirmation.date}", found=str(folder))


def to_yaml(data: object) -> str:
    """YAML that ``read_yaml`` reads back as the same data: text that could be read otherwise is quoted."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ('"' if not text or not text[0].isalpha() or _ambiguous(text) else None)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _ambiguous(text: str) -> bool:
    return text.lower() in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"} or text.isdigit()


_Dumper.add_representer(str, _text)


def write_file(target: Path, text: str) -> None:
    """Whole or not at all: written beside, then renamed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, suffix=".incomplete")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written", found=error.strerror) from error


def _lint_alone(recipe: Recipe, located: Located, loaded: Loaded, today: int) -> list[Finding]:
    beside = {key: held for key, held in loaded.recipes.items() if key != recipe.id}
    held = RecipeFile(recipe, "user", located)
    all_findings = lint(Loaded({**beside, recipe.id: held}, loaded.models, ()), today)
    return [finding for finding in all_findings if finding.file == held.located.file]
