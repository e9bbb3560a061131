"""Deriving the store from recipes: standings, cells, rows, words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from tandem.recipes.facts import fact_sheet
from tandem.recipes.files import RecipeFile
from tandem.recipes.fit import fit_subject
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import SCHEMA_VERSION
from tandem.recipes.status import engine_majors, standing_of
from tandem.recipes.store import Store, StoredRecipe
from tandem.recipes.yaml_lines import RecipeFileError

FACTS_VERSION = 1
"""Raise it when what is derived changes (facts.py, status.py, fit.py), so that stores are rebuilt."""


def rebuild_store(
    store: Store,
    recipes: Iterable[RecipeFile],
    models: dict[str, ModelEntry],
    problems: Iterable[RecipeFileError],
    today: int,
    state: str,
) -> None:
    """Derive everything from recipes and put it into the store."""
    files = list(recipes)
    majors = engine_majors(file.recipe for file in files)
    digest = hashlib.sha256(f"{SCHEMA_VERSION}.{FACTS_VERSION}".encode())
    for model in models.values():
        digest.update(model.model_dump_json(exclude_defaults=True).encode())

    def stored() -> Iterator[StoredRecipe]:
        for file in files:
            recipe = file.recipe
            standing = standing_of(recipe, today, majors)
            document = recipe.model_dump_json(exclude_defaults=True)
            digest.update(f"{file.origin}{standing}{document}".encode())
            yield StoredRecipe(
                recipe=recipe,
                document=document,
                sheet=fact_sheet(recipe, models[recipe.model], standing, file.origin),
                origin=file.origin,
                file=file.located.file,
                subjects=tuple(fit_subject(recipe, profile) for profile in recipe.profiles),
            )

    def meta() -> dict[str, str]:
        return {"version": digest.hexdigest(), "state": state, "majors": json.dumps(majors)}

    store.rebuild(stored(), models.values(), problems, meta)
