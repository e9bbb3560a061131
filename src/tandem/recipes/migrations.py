"""The store's tables, as numbered steps. Append only: a step that was ever released is never edited."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable


def m001_first_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    db.execute(
        """CREATE TABLE recipe (
            ordinal INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            model TEXT NOT NULL,
            title TEXT NOT NULL,
            origin TEXT NOT NULL,
            file TEXT NOT NULL,
            document TEXT NOT NULL,
            cells TEXT NOT NULL,
            summary TEXT NOT NULL
        )"""
    )
    db.execute(
        """CREATE TABLE member (
            ordinal INTEGER PRIMARY KEY,
            recipe INTEGER NOT NULL REFERENCES recipe (ordinal),
            kind TEXT NOT NULL,
            profile INTEGER,
            subject TEXT,
            cells TEXT NOT NULL,
            summary TEXT NOT NULL
        )"""
    )
    db.execute("CREATE INDEX member_by_recipe ON member (recipe)")
    db.execute("CREATE TABLE model (id TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID")
    db.execute("CREATE TABLE problem (file TEXT, line INTEGER, field TEXT, problem TEXT)")
    db.execute(
        """CREATE VIRTUAL TABLE words USING fts5 (
            title, names, setup, flags, prose,
            content='', tokenize='unicode61 remove_diacritics 2', prefix='2 3'
        )"""
    )


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (m001_first_tables,)


def migrate(db: sqlite3.Connection) -> bool:
    """Apply the steps that are missing, in order. False if the file has steps of a newer Tandem."""
    db.execute("CREATE TABLE IF NOT EXISTS migration (name TEXT PRIMARY KEY) WITHOUT ROWID")
    applied = {row[0] for row in db.execute("SELECT name FROM migration")}
    known = {step.__name__ for step in MIGRATIONS}
    if not applied <= known:
        return False
    for step in MIGRATIONS:
        if step.__name__ not in applied:
            step(db)
            db.execute("INSERT INTO migration VALUES (?)", (step.__name__,))
    return True
