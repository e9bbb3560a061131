"""Reading the catalogue's folders: shipped recipes, the user's recipes, the user's confirmations.

One broken file never hides the others: it becomes a ``RecipeFileError`` in ``Loaded.problems``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from tandem.recipes.measurement import Confirmation, UserConfirmation
from tandem.recipes.register import ModelEntry, Register
from tandem.recipes.schema import SCHEMA_VERSION, Recipe
from tandem.recipes.yaml_lines import Located, RecipeFileError, dotted, read_yaml

Origin = Literal["shipped", "user"]
REGISTER_NAME = "models.yaml"

Parsed = TypeVar("Parsed", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe with where it was read from. ``recipe`` includes the user's confirmations."""

    recipe: Recipe
    origin: Origin
    located: Located


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that could be read, by id, and what could not."""

    recipes: dict[str, RecipeFile]
    models: dict[str, ModelEntry]
    problems: tuple[RecipeFileError, ...]


def shipped_folder() -> Path:
    """The folder of recipes that come with the package."""
    return Path(str(resources.files("tandem.recipes") / "data"))


def user_recipes_folder(data_dir: Path) -> Path:
    return data_dir / "recipes"


def user_confirmations_folder(data_dir: Path) -> Path:
    return data_dir / "confirmations"


def catalogue_files(data_dir: Path | None, shipped: Path | None = None) -> list[tuple[Path, Origin]]:
    """All files of the catalogue in reading order; shipped first."""
    folders: list[tuple[Path, Origin]] = [(shipped or shipped_folder(), "shipped")]
    if data_dir is not None:
        folders += [(user_recipes_folder(data_dir), "user"), (user_confirmations_folder(data_dir), "user")]
    return [(path, origin) for folder, origin in folders for path in sorted(folder.glob("*.yaml"))]


def fingerprint(files: list[tuple[Path, Origin]]) -> str:
    """Changes when a file is added, removed or rewritten; reads no contents."""
    digest = hashlib.sha256()
    for path, _ in files:
        try:
            info = path.stat()
        except FileNotFoundError:
            continue
        digest.update(f"{path}\0{info.st_size}\0{info.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def load_catalogue(data_dir: Path | None, shipped: Path | None = None) -> Loaded:
    """Read every file. A user's recipe with a shipped id replaces the shipped one."""
    recipes: dict[str, RecipeFile] = {}
    models: dict[str, ModelEntry] = {}
    confirmations: list[tuple[UserConfirmation, Located]] = []
    problems: list[RecipeFileError] = []
    for path, origin in catalogue_files(data_dir, shipped):
        try:
            for located in read_yaml(_read_text(path), str(path)):
                if data_dir is not None and path.parent == user_confirmations_folder(data_dir):
                    confirmations.append((parse(UserConfirmation, located), located))
                elif isinstance(located.data, dict) and "models" in located.data:
                    _add_models(models, parse(Register, located), located)
                else:
                    _add_recipe(recipes, RecipeFile(parse(Recipe, located), origin, located))
        except RecipeFileError as error:
            problems.append(error)
    for confirmation, located in confirmations:
        held = recipes.get(confirmation.recipe)
        if held is None:
            problem = f"no recipe {confirmation.recipe!r}"
            problems.append(RecipeFileError(located.file, located.line_of(("recipe",)), "recipe", problem))
        else:
            merged = with_confirmation(held.recipe, confirmation.confirmation)
            recipes[confirmation.recipe] = RecipeFile(merged, held.origin, held.located)
    for held in recipes.values():
        if held.recipe.model not in models:
            line = held.located.line_of(("model",))
            problem = f"no model {held.recipe.model!r} in the register"
            problems.append(RecipeFileError(held.located.file, line, "model", problem))
    known = {key: held for key, held in recipes.items() if held.recipe.model in models}
    return Loaded(known, models, tuple(problems))


def with_confirmation(recipe: Recipe, confirmation: Confirmation) -> Recipe:
    """The recipe with one more confirmation, its measurements among the recipe's own."""
    taken = {measurement.id for measurement in recipe.measurements}
    added = tuple(item for item in confirmation.measurements if item.id not in taken)
    return recipe.model_copy(
        update={
            "confirmations": (*recipe.confirmations, confirmation),
            "measurements": (*recipe.measurements, *added),
        }
    )


def parse(schema: type[Parsed], located: Located) -> Parsed:
    """Check plain data against a schema; raises RecipeFileError for the first thing that is wrong."""
    if not isinstance(located.data, dict):
        raise RecipeFileError(located.file, 1, "", "the document must be a mapping of fields")
    _check_version(located)
    try:
        return schema.model_validate_json(json.dumps(located.data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = _file_path(first["loc"], located.data)
        raise RecipeFileError(
            located.file,
            located.line_of(path),
            dotted(path),
            _explain(first["type"], first["msg"], first["input"]),
        ) from error


def _check_version(located: Located) -> None:
    version = located.data.get("schema_version")
    line = located.line_of(("schema_version",))
    if version is None:
        raise RecipeFileError(
            located.file, line, "schema_version", "missing", remedy=f"schema_version: {SCHEMA_VERSION}"
        )
    if version != SCHEMA_VERSION:
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise RecipeFileError(
            located.file,
            line,
            "schema_version",
            f"version {version!r} cannot be read; this is version {SCHEMA_VERSION}",
            remedy="a newer Tandem" if newer else None,
        )


def _file_path(loc: tuple[int | str, ...], data: Any) -> tuple[str | int, ...]:
    """The part of an error's location that names fields, without the schema's own type names."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        inside = isinstance(data, dict) and part in data
        if inside or (isinstance(data, list) and isinstance(part, int) and part < len(data)):
            data = data[part]
            path.append(part)
        elif index == len(loc) - 1 and isinstance(data, dict) and isinstance(part, str):
            path.append(part)
        else:
            break
    return tuple(path)


def _explain(kind: str, message: str, value: Any) -> str:
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "missing":
        return "missing"
    if kind == "string_type" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value!r} is read as a number, text is wanted here; put it in quotes"
    text = message.removeprefix("Value error, ")
    return f"{text} (found {value!r})" if isinstance(value, (str, int, float)) else text


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeFileError(str(path), 1, "", "not UTF-8 text") from error
    except OSError as error:
        raise RecipeFileError(str(path), 1, "", f"cannot be read: {error.strerror}") from error


def _add_recipe(recipes: dict[str, RecipeFile], added: RecipeFile) -> None:
    held = recipes.get(added.recipe.id)
    if held is not None and held.origin == added.origin:
        line = added.located.line_of(("id",))
        problem = f"{added.recipe.id!r} is already the id of {held.located.file}"
        raise RecipeFileError(added.located.file, line, "id", problem)
    recipes[added.recipe.id] = added


def _add_models(models: dict[str, ModelEntry], register: Register, located: Located) -> None:
    for index, entry in enumerate(register.models):
        if entry.id in models:
            line = located.line_of(("models", index, "id"))
            raise RecipeFileError(located.file, line, f"models[{index}].id", f"{entry.id!r} is given twice")
        models[entry.id] = entry
