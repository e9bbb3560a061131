"""The catalogue in SQLite: documents, rows and full-text search, rebuilt when the files change.

Nothing here is the only copy of anything: a file that is damaged, or was written by a newer Tandem, is
replaced. The user's own recipes and confirmations stay YAML files.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.core.log import get_logger
from tandem.recipes.facets import Cell, Cells, Member
from tandem.recipes.facts import FactSheet
from tandem.recipes.fit import FitSubject
from tandem.recipes.migrations import migrate
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import Recipe
from tandem.recipes.yaml_lines import RecipeFileError

_log = get_logger("recipes")
_TABLES = ("recipe", "member", "model", "problem", "meta")
_WAIT_S = 30.0
_VALUES_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class StoredRecipe:
    """What goes into the store for one recipe; ``subjects`` are in the order of its profiles."""

    recipe: Recipe
    document: str
    """The recipe as JSON, without defaults."""
    sheet: FactSheet
    origin: str
    file: str
    subjects: tuple[FitSubject, ...]


class Store:
    """One SQLite database. Methods are thread-safe; a rebuild is one transaction."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.RLock()
        self._db = _open(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def meta(self, key: str) -> str | None:
        with self._lock:
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def rebuild(
        self,
        recipes: Iterable[StoredRecipe],
        models: Iterable[ModelEntry],
        problems: Iterable[RecipeFileError],
        meta: Callable[[], dict[str, str]],
    ) -> None:
        """Replace everything, or (on an error) nothing. ``meta`` is asked once all recipes are in."""
        with self._transaction() as db:
            for table in _TABLES:
                db.execute(f"DELETE FROM {table}")
            db.execute("INSERT INTO words (words) VALUES ('delete-all')")
            for ordinal, stored in enumerate(recipes):
                _insert(db, ordinal, stored)
            db.executemany(
                "INSERT INTO model VALUES (?, ?)",
                [(m.id, m.model_dump_json(exclude_defaults=True)) for m in models],
            )
            db.executemany(
                "INSERT INTO problem VALUES (?, ?, ?, ?)",
                [(p.file, p.line, p.where, p.problem) for p in problems],
            )
            db.executemany("INSERT INTO meta VALUES (?, ?)", list(meta().items()))

    def recipe_cells(self) -> Iterator[tuple[str, str, Cells]]:
        """(id, title, cells) of every recipe, by ordinal."""
        for identity, title, cells in self._all("SELECT id, title, cells FROM recipe ORDER BY ordinal"):
            yield identity, title, _decode(cells)

    def member_cells(self, profiles: bool) -> Iterator[tuple[int, int, str, int | None, Cells]]:
        """(ordinal, recipe, group, profile, cells) of all profiles, or of all measurements."""
        sign = "=" if profiles else "<>"
        columns = "ordinal, recipe, kind, profile, cells"
        sql = f"SELECT {columns} FROM member WHERE kind {sign} 'profile' ORDER BY ordinal"
        for ordinal, recipe, kind, profile, cells in self._all(sql):
            yield ordinal, recipe, kind, profile, _decode(cells)

    def subjects(self) -> Iterator[FitSubject]:
        """What decides each profile's memory, by ordinal."""
        for (text,) in self._all("SELECT subject FROM member WHERE kind = 'profile' ORDER BY ordinal"):
            yield FitSubject(**json.loads(text))

    def recipe_summaries(self, ordinals: list[int]) -> list[dict[str, Any]]:
        """Row data in the order asked."""
        found = dict(self._by_ordinal("SELECT ordinal, summary FROM recipe WHERE ordinal IN", ordinals))
        return [json.loads(found[ordinal]) for ordinal in ordinals]

    def member_summaries(self, ordinals: list[int]) -> list[dict[str, Any]]:
        """Row data of profiles or measurements, with the main facts of their recipe, in the order asked."""
        sql = (
            "SELECT m.ordinal, m.summary, r.summary FROM member m JOIN recipe r ON r.ordinal = m.recipe "
            "WHERE m.ordinal IN"
        )
        found = {row[0]: row[1:] for row in self._by_ordinal(sql, ordinals)}
        rows = []
        for ordinal in ordinals:
            own, of_recipe = (json.loads(text) for text in found[ordinal])
            shared = {
                key: of_recipe[key] for key in ("id", "title", "model", "model_id", "status", "standing")
            }
            rows.append(shared | own)
        return rows

    def document(self, recipe_id: str) -> tuple[Recipe, str, str] | None:
        """(recipe, origin, file), None for an unknown id."""
        sql = "SELECT document, origin, file FROM recipe WHERE id = ?"
        with self._lock:
            row = self._db.execute(sql, (recipe_id,)).fetchone()
        return None if row is None else (Recipe.model_validate_json(row[0]), str(row[1]), str(row[2]))

    def documents(self, ordinals: list[int]) -> list[Recipe]:
        found = dict(self._by_ordinal("SELECT ordinal, document FROM recipe WHERE ordinal IN", ordinals))
        return [Recipe.model_validate_json(found[ordinal]) for ordinal in ordinals]

    def models(self) -> dict[str, ModelEntry]:
        rows = self._all("SELECT id, document FROM model ORDER BY id")
        return {identity: ModelEntry.model_validate_json(document) for identity, document in rows}

    def problems(self) -> list[RecipeFileError]:
        rows = self._all("SELECT file, line, field, problem FROM problem ORDER BY rowid")
        return [RecipeFileError(*row) for row in rows]

    def search(self, text: str) -> list[int]:
        """Ordinals of the recipes that hold every word, as prefixes; punctuation and case are ignored."""
        words = re.findall(r"\w+", text)
        if not words:
            return []
        match = " ".join(f'"{word}"*' for word in words)
        rows = self._all("SELECT rowid FROM words WHERE words MATCH ?", (match,))
        return [ordinal for (ordinal,) in rows]

    def _all(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _by_ordinal(self, sql: str, ordinals: list[int]) -> list[Any]:
        rows: list[Any] = []
        for start in range(0, len(ordinals), _VALUES_PER_STATEMENT):
            part = ordinals[start : start + _VALUES_PER_STATEMENT]
            rows += self._all(f"{sql} ({','.join('?' * len(part))})", tuple(part))
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


def _open(path: Path | None) -> sqlite3.Connection:
    """Open or create; falls back to memory where the folder cannot be written."""
    if path is not None:
        for attempt in range(2):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                db = _connect(str(path))
                db.execute("BEGIN IMMEDIATE")
                if migrate(db):
                    db.execute("COMMIT")
                    return db
                db.close()
                raise sqlite3.DatabaseError("it was written by a newer version")
            except sqlite3.OperationalError as error:
                _log.warning("%s cannot be used (%s); the catalogue is kept in memory", path, error)
                break
            except sqlite3.DatabaseError as error:
                if attempt:
                    raise
                _log.warning("%s is rebuilt: %s", path, error)
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("%s cannot be made (%s); the catalogue is kept in memory", path, error.strerror)
                break
    db = _connect(":memory:")
    db.execute("BEGIN")
    migrate(db)
    db.execute("COMMIT")
    return db


def _connect(place: str) -> sqlite3.Connection:
    return sqlite3.connect(place, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)


def _insert(db: sqlite3.Connection, ordinal: int, stored: StoredRecipe) -> None:
    recipe, sheet = stored.recipe, stored.sheet
    db.execute(
        "INSERT INTO recipe VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            ordinal, recipe.id, recipe.model, recipe.title, stored.origin, stored.file, stored.document,
            _encode(sheet.cells), json.dumps(sheet.summary),
        ),
    )  # fmt: skip
    rows = [
        (ordinal, item.group, item.profile, subject, _encode(item.cells), json.dumps(item.summary))
        for item, subject in _members(stored)
    ]
    db.executemany(
        "INSERT INTO member (recipe, kind, profile, subject, cells, summary) VALUES (?, ?, ?, ?, ?, ?)", rows
    )
    words = sheet.words
    db.execute(
        "INSERT INTO words (rowid, title, names, setup, flags, prose) VALUES (?, ?, ?, ?, ?, ?)",
        (ordinal, words["title"], words["names"], words["setup"], words["flags"], words["prose"]),
    )


def _members(stored: StoredRecipe) -> Iterator[tuple[Member, str | None]]:
    for item, subject in zip(stored.sheet.profiles, stored.subjects, strict=True):
        yield item, json.dumps(asdict(subject))
    for item in stored.sheet.measurements:
        yield item, None


def _encode(cells: Cells) -> str:
    compact = {
        key: [list(cell.values), list(cell.possible), int(cell.not_applicable)]
        for key, cell in cells.items()
        if cell != Cell()
    }
    return json.dumps(compact, separators=(",", ":"))


def _decode(text: str) -> Cells:
    return {
        key: Cell(tuple(map(_value, values)), tuple(map(_value, possible)), bool(absent))
        for key, (values, possible, absent) in json.loads(text).items()
    }


def _value(value: Any) -> str | tuple[float, float]:
    return (value[0], value[1]) if isinstance(value, list) else value
