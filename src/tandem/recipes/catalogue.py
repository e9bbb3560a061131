"""The catalogue's face: open it, drill it, read one recipe. Notices changed files by itself."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tandem.core.log import get_logger
from tandem.recipes.build import FACTS_VERSION, rebuild_store
from tandem.recipes.columns import Column, ColumnBuilder, TableColumn
from tandem.recipes.drilldown import Drilldown, FacetView, drill, facet_view, listing
from tandem.recipes.facets import BY_KEY
from tandem.recipes.files import catalogue_files, fingerprint, load_catalogue
from tandem.recipes.fit import FitCalculator, FitReport, FitSubject, Hardware, UnknownFit, fit_subject
from tandem.recipes.index import CatalogueIndex
from tandem.recipes.matching import Matching
from tandem.recipes.query import Params, Query, parse_query
from tandem.recipes.query_error import QueryError, UnknownFacetError, UnknownRecipeError
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import SCHEMA_VERSION, Profile, Recipe
from tandem.recipes.status import Standing, standing_of
from tandem.recipes.store import Store
from tandem.recipes.yaml_lines import RecipeFileError

_log = get_logger("recipes")
_CHECK_EVERY_S = 2.0
_KEPT_FITS = 16
STORE_NAME = "catalogue.sqlite3"


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe as a page needs it."""

    recipe: Recipe
    model: ModelEntry
    standing: Standing
    origin: str
    file: str


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All that is derived from one state of the files."""

    fingerprint: str
    version: str
    index: CatalogueIndex
    models: dict[str, ModelEntry]
    majors: dict[str, int]
    aliases: dict[str, str]
    problems: tuple[RecipeFileError, ...]


class Catalogue:
    """Thread-safe. ``data_dir`` holds the user's files and the store; None keeps everything in memory.

    ``today`` fixes the date; otherwise a store built on an earlier day is rebuilt, since standings age.
    """

    def __init__(
        self,
        data_dir: Path | None,
        *,
        calculator: FitCalculator | None = None,
        shipped: Path | None = None,
        today: dt.date | None = None,
        store: Store | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._shipped = shipped
        self._today = today
        self.calculator: FitCalculator = calculator or UnknownFit()
        self._fixed = store is not None
        self.store = store or Store(None if data_dir is None else data_dir / STORE_NAME)
        self._lock = threading.RLock()
        self._checked_at = 0.0
        self._snapshot_held: _Snapshot | None = None
        self._judged: dict[tuple[str, str], TableColumn] = {}

    @property
    def data_dir(self) -> Path | None:
        return self._data_dir

    @property
    def version(self) -> str:
        """Changes whenever any recipe, confirmation, model or standing does."""
        return self._snapshot().version

    def problems(self) -> tuple[RecipeFileError, ...]:
        """Files that could not be read; the others are served all the same."""
        return self._snapshot().problems

    def models(self) -> dict[str, ModelEntry]:
        return self._snapshot().models

    def label(self, key: str, value: str) -> str:
        """A value's label, such as a model's name."""
        if key == "model":
            model = self._snapshot().models.get(value)
            return value if model is None else model.name
        return BY_KEY[key].label_of(value)

    def parse(self, params: Params) -> Query:
        """Read URL parameters, names and aliases of models included. Raises QueryError."""
        query = parse_query(params, self._resolve)
        if "fits" in query.filters and query.hardware is None:
            raise QueryError("fits", "which cards?", "hw=2x64gib beside it")
        return query

    def drilldown(self, query: Query) -> Drilldown:
        snapshot = self._snapshot()
        found = self._search(query)
        return drill(snapshot.index, query, found, self._fits(snapshot, query), snapshot.version, self.label)

    def facet(self, query: Query, key: str, limit: int | None = None) -> FacetView:
        """One facet of a query; all its values with a ``limit``.

        Raises UnknownFacetError for a key that there is none of, or none with this grain or without cards.
        """
        matching = self._matching(query)
        for facet in matching.facets:
            if facet.key == key:
                return facet_view(matching, facet, self.label, limit)
        if key == "fits":
            raise UnknownFacetError("fits", "name cards: hw=2x64gib beside it")
        if key in BY_KEY:
            raise UnknownFacetError(key, "grain=measurement beside it")
        raise UnknownFacetError(key)

    def rows(self, query: Query, ordinals: Iterable[int]) -> list[dict[str, Any]]:
        """Row data of records, in the order given."""
        wanted = list(ordinals)
        if query.grain == "recipe":
            return self.store.recipe_summaries(wanted)
        return self.store.member_summaries(wanted)

    def matching_recipes(self, query: Query) -> Iterator[Recipe]:
        """Every recipe of the query, or that holds a matching profile or measurement, in order, once."""
        matching = self._matching(query)
        index = self._snapshot().index
        records = listing(index, matching)
        owner = index.owner(query.grain)
        recipes = [int(number) for number in (records if owner is None else owner[records])]
        unique = list(dict.fromkeys(recipes))
        for start in range(0, len(unique), 200):
            yield from self.store.documents(unique[start : start + 200])

    def recipe_ids(self) -> tuple[str, ...]:
        return self._snapshot().index.recipe_ids

    def entry(self, recipe_id: str) -> Entry:
        """Raises UnknownRecipeError with similar ids."""
        snapshot = self._snapshot()
        found = self.store.document(recipe_id)
        if found is None:
            raise UnknownRecipeError(
                recipe_id[:80], _similar(recipe_id[:80], snapshot.index.recipe_ids[:2000])
            )
        recipe, origin, file = found
        standing = standing_of(recipe, self._day(), snapshot.majors)
        return Entry(recipe, snapshot.models[recipe.model], standing, origin, file)

    def fit(self, recipe: Recipe, profile: Profile, hardware: Hardware) -> FitReport:
        """Judge one profile on somebody's cards."""
        return self.fit_of(fit_subject(recipe, profile), hardware)

    def fit_of(self, subject: FitSubject, hardware: Hardware) -> FitReport:
        model = self._snapshot().models.get(subject.model)
        return self.calculator.fit(subject, None if model is None else model.geometry, hardware)

    def _day(self) -> int:
        return (self._today or dt.date.today()).toordinal()

    def _resolve(self, key: str, value: str) -> str:
        return self._snapshot().aliases.get(value.casefold(), value) if key == "model" else value

    def _search(self, query: Query) -> Any:
        return np.asarray(self.store.search(query.search), dtype=np.int64) if query.search else None

    def _matching(self, query: Query) -> Matching:
        snapshot = self._snapshot()
        return Matching(snapshot.index, query, self._search(query), self._fits(snapshot, query))

    def _fits(self, snapshot: _Snapshot, query: Query) -> Column | None:
        """The computed facet: one verdict for each profile, kept for the latest few hardwares."""
        if query.hardware is None:
            return None
        key = (query.hardware.text(), snapshot.version)
        with self._lock:
            judged = self._judged.get(key)
            if judged is None:
                judged = self._judged[key] = self._judge_all(query.hardware)
                while len(self._judged) > _KEPT_FITS:
                    self._judged.pop(next(iter(self._judged)))
        return snapshot.index.grain(query.grain).arrange(BY_KEY["fits"], judged)

    def _judge_all(self, hardware: Hardware) -> TableColumn:
        """Profiles that take the same memory are judged once."""
        verdicts: dict[FitSubject, str] = {}
        builder = ColumnBuilder("term")
        profiles = 0
        for profiles, subject in enumerate(self.store.subjects(), 1):
            if subject not in verdicts:
                verdicts[subject] = self.fit_of(subject, hardware).verdict
            builder.add(profiles - 1, (verdicts[subject],))
        return builder.finish(profiles)

    def _snapshot(self) -> _Snapshot:
        with self._lock:
            held = self._snapshot_held
            now = time.monotonic()
            if held is not None and (self._fixed or now - self._checked_at < _CHECK_EVERY_S):
                return held
            self._checked_at = now
            state = self._state()
            if held is None or held.fingerprint != state:
                self._snapshot_held = held = self._derive(state)
            return held

    def refresh(self) -> None:
        """Look at the files at the next use, however recently they were looked at."""
        with self._lock:
            self._checked_at = -_CHECK_EVERY_S

    def _state(self) -> str:
        if self._fixed:
            return "fixed"
        files = fingerprint(catalogue_files(self._data_dir, self._shipped))
        return f"{SCHEMA_VERSION}.{FACTS_VERSION}.{self._day()}.{files}"

    def _derive(self, state: str) -> _Snapshot:
        if not self._fixed and self.store.meta("state") != state:
            self._rebuild(state)
        models = self.store.models()
        aliases = {name.casefold(): m.id for m in models.values() for name in (m.id, m.name, *m.aliases)}
        return _Snapshot(
            fingerprint=state,
            version=self.store.meta("version") or "empty",
            index=CatalogueIndex(self.store),
            models=models,
            majors=json.loads(self.store.meta("majors") or "{}"),
            aliases=aliases,
            problems=tuple(self.store.problems()),
        )

    def _rebuild(self, state: str) -> None:
        loaded = load_catalogue(self._data_dir, self._shipped)
        for problem in loaded.problems:
            _log.warning("%s", problem)
        held = [loaded.recipes[key] for key in sorted(loaded.recipes)]
        rebuild_store(self.store, held, loaded.models, loaded.problems, self._day(), state)


def _similar(recipe_id: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Up to three ids that begin like the given one, or are spelled nearly like it."""
    alike = [known for known in ids if recipe_id and known.startswith(recipe_id)]
    alike += difflib.get_close_matches(recipe_id, ids, n=3, cutoff=0.4)
    return tuple(dict.fromkeys(alike))[:3]
