"""One term of a filter: a value, a range, or one of the reserved words, and back to its canonical text.

::

    model=glm-5.3-flash          a value by its id
    cards=2..4                   2 <= n < 4;   2..=4 includes 4;   ..100 and 60.. are open
    tested_on=2026-10            a partial date: all that lies within it
    unlock=~none                 nothing stated;  ~na cannot apply;  ~other all but the values shown
    note=~~none                  the value "~none" itself
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from tandem.recipes.columns import Bools, Floats
from tandem.recipes.facets import Facet
from tandem.recipes.query_error import QueryError
from tandem.recipes.values import date_span

Word = Literal["none", "other", "na"]
WORDS: tuple[Word, ...] = ("none", "other", "na")
WORD_LABELS: dict[Word, str] = {"other": "Other", "na": "Cannot apply"}
MAX_TERM_CHARACTERS = 500

_NUMBER = re.compile(r"[-+]?[0-9]{1,25}(\.[0-9]{1,25})?")


@dataclass(frozen=True, slots=True)
class Bounds:
    """[low, high) or, with ``closed``, [low, high]. Numbers, or days as ordinals."""

    low: float
    high: float
    closed: bool

    def overlapping(self, low: Floats, high: Floats) -> Bools:
        """Which of the intervals [low, high] have a point inside."""
        return (high >= self.low) & ((low <= self.high) if self.closed else (low < self.high))

    def containing(self, low: Floats, high: Floats) -> Bools:
        """Which of the intervals [low, high] lie inside with both ends."""
        return (low >= self.low) & ((high <= self.high) if self.closed else (high < self.high))


@dataclass(frozen=True, slots=True)
class Term:
    """``text`` is canonical; exactly one of the others is set."""

    text: str
    word: Word | None = None
    value: str | None = None
    bounds: Bounds | None = None


def parse_term(facet: Facet, text: str) -> Term:
    """Raises QueryError for a term that the facet cannot have."""
    if len(text) > MAX_TERM_CHARACTERS:
        raise QueryError(facet.key, f"a value of more than {MAX_TERM_CHARACTERS} characters")
    if text.startswith("~") and not text.startswith("~~"):
        if text[1:] not in WORDS:
            raise QueryError(
                facet.key, f"{text!r} is no reserved word", "~none, ~other, ~na, or ~~ for a value's own ~"
            )
        word: Word = text[1:]  # type: ignore[assignment]
        if word == "other" and facet.kind != "term":
            raise QueryError(facet.key, "~other is for facets of single values, not of ranges")
        return Term(text, word=word)
    if facet.kind == "number":
        return _number_term(facet, text)
    if facet.kind == "date":
        return _date_term(facet, text)
    if not text:
        raise QueryError(facet.key, "an empty value", f"{facet.key}=~none for recipes that state none")
    value = term_value(text[1:] if text.startswith("~~") else text)
    if facet.choices is not None and value not in facet.choices:
        raise QueryError(facet.key, f"{value!r} is not one of its values", ", ".join(facet.choices))
    return value_term(value)


def one_line(text: str) -> str:
    """Without control and other unprintable characters, and with single spaces."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def term_value(text: str) -> str:
    """A value as it is filtered by: one line, not too long for an address."""
    return one_line(text)[:MAX_TERM_CHARACTERS] or "(blank)"


def value_term(value: str) -> Term:
    return Term("~" + value if value.startswith("~") else value, value=value)


def number_text(value: float) -> str:
    """The shortest text that reads back as the number: ``60``, ``3.05``."""
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")


def range_text(low: str, high: str, closed: bool) -> str:
    return f"{low}..{'=' if closed else ''}{high}"


def _number_term(facet: Facet, text: str) -> Term:
    low_text, dots, high_text = text.partition("..")
    if not dots:
        value = _number(facet, text)
        return Term(number_text(value), bounds=Bounds(value, value, True))
    closed = high_text.startswith("=")
    high_text = high_text.removeprefix("=")
    if not low_text and not high_text:
        raise QueryError(facet.key, f"{text!r} has no bound")
    if closed and not high_text:
        raise QueryError(facet.key, f"{text!r} has no upper bound to include")
    low = _number(facet, low_text) if low_text else -math.inf
    high = _number(facet, high_text) if high_text else math.inf
    _check_order(facet, text, low, high, closed)
    canonical = range_text(
        number_text(low) if low_text else "", number_text(high) if high_text else "", closed
    )
    return Term(canonical, bounds=Bounds(low, high, closed))


def _number(facet: Facet, text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise QueryError(
            facet.key, f"{text!r} is neither a number nor a range", "a number, or a range like 2..4"
        )
    value = float(text)
    return 0.0 if value == 0 else value


def _date_term(facet: Facet, text: str) -> Term:
    low_text, dots, high_text = text.partition("..")
    closed = high_text.startswith("=")
    high_text = high_text.removeprefix("=")
    try:
        if not dots:
            start, end = date_span(text)
            return Term(text, bounds=Bounds(start, end - 1, True))
        if not (low_text or high_text) or (closed and not high_text):
            raise QueryError(facet.key, f"{text!r} has no bound")
        low = date_span(low_text)[0] if low_text else -math.inf
        high = math.inf if not high_text else float(date_span(high_text)[1 if closed else 0])
    except ValueError as error:
        raise QueryError(
            facet.key, str(error), "a date like 2026-10-20, or a range like 2026-09..2026-11"
        ) from error
    _check_order(facet, text, low, high, False)
    return Term(range_text(low_text, high_text, closed), bounds=Bounds(low, high - 1, True))


def _check_order(facet: Facet, text: str, low: float, high: float, closed: bool) -> None:
    if low > high or (low == high and not closed):
        hint = f"{text.replace('..', '..=')} includes its end" if low == high else None
        raise QueryError(facet.key, f"the range {text!r} is empty", hint)


def within(facet: Facet, bounds: Bounds, spans: tuple[Floats, Floats], strict: bool) -> Bools:
    """Which stored values lie in a range: intervals by overlap (by containment with ``strict``), dates whole.

    A partial date stands for all its days and only matches a range that holds every one of them.
    """
    if strict or facet.kind == "date":
        return bounds.containing(*spans)
    return bounds.overlapping(*spans)


def sorted_terms(terms: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(sorted({term.text: term for term in terms}.values(), key=lambda term: term.text))
