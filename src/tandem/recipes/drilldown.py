"""The answer to a drilldown query: facets with their counts, crumbs, and one page of rows."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tandem.recipes.buckets import date_ranges, number_ranges, top_codes
from tandem.recipes.columns import ABSENT, FIRST, NONE, Column, Ints
from tandem.recipes.facets import BY_KEY, Facet
from tandem.recipes.index import CatalogueIndex
from tandem.recipes.matching import Matching
from tandem.recipes.query import Query
from tandem.recipes.query_error import QueryError
from tandem.recipes.terms import WORD_LABELS, Term, parse_term, value_term

FOUND_VALUES = 40
"""Values listed by a search within a facet."""

Labeller = Callable[[str, str], str]
"""(facet key, value) -> what a reader sees."""


@dataclass(frozen=True, slots=True)
class FacetValue:
    """``id`` is the term to filter by; ``toggle`` the canonical query string with it chosen, or no longer."""

    id: str
    label: str
    count: int
    selected: bool
    toggle: str


@dataclass(frozen=True, slots=True)
class FacetView:
    """``total`` records match everything but this facet's own filter; ``unknown`` of them state no value."""

    facet: Facet
    total: int
    unknown: int
    distinct: int
    truncated: bool
    values: tuple[FacetValue, ...]
    find: str = ""

    @property
    def filtered(self) -> bool:
        return any(value.selected for value in self.values)


@dataclass(frozen=True, slots=True)
class Crumb:
    """One part of the query and the query string without it."""

    label: str
    value: str
    remove: str


@dataclass(frozen=True, slots=True)
class Drilldown:
    query: Query
    total: int
    records: int
    """Of the whole catalogue at this grain."""
    facets: tuple[FacetView, ...]
    crumbs: tuple[Crumb, ...]
    rows: tuple[int, ...]
    """The store's ordinals of this page's records."""
    first: int
    """Position of the first row, from 0."""
    next: str | None
    previous: str | None
    """Query strings of the neighbouring pages."""


def drill(
    index: CatalogueIndex,
    query: Query,
    found: Ints | None,
    fits: Column | None,
    version: str,
    label: Labeller,
) -> Drilldown:
    """Evaluate a query. Raises QueryError for a cursor of another version of the catalogue."""
    matching = Matching(index, query, found, fits)
    listed = listing(index, matching)
    start = _cursor_start(query.cursor, version, len(listed))
    end = min(start + query.limit, len(listed))
    return Drilldown(
        query=query,
        total=len(listed),
        records=matching.grain.records,
        facets=tuple(facet_view(matching, facet, label) for facet in matching.facets),
        crumbs=_crumbs(query, label),
        rows=tuple(index.ordinals(query.grain, listed[start:end])),
        first=start,
        next=_page(query, end, version) if end < len(listed) else None,
        previous=_page(query, max(start - query.limit, 0), version) if start else None,
    )


def listing(index: CatalogueIndex, matching: Matching) -> Ints:
    """All matching records in the query's order."""
    query = matching.query
    order = index.order(query.grain, query.sort, query.descending, query.possible)
    return order[matching.records()[order]]


def facet_view(matching: Matching, facet: Facet, label: Labeller, limit: int | None = None) -> FacetView:
    """One facet; ``limit`` lists so many values instead of the query's ``top`` (for a full listing)."""
    query = matching.query
    column = matching.column(facet)
    base = matching.base(facet)
    selected = column.select(base)
    chosen = {term.text: term for term in query.filter_of(facet.key).any_of}

    def count(term: Term) -> int:
        return selected.count(matching.accepted(facet, term))

    if facet.kind == "term":
        counts = selected.counts()
        codes = _codes(matching, facet, counts, label, limit)
        terms = {value_term(column.values[code - FIRST]).text: int(counts[code]) for code in codes}
    else:
        counts = selected.entries
        if facet.kind == "number":
            ranges = number_ranges(column.spans, counts[FIRST:])
        else:
            ranges = date_ranges(column.values, counts[FIRST:])
        terms = {text: count(parse_term(facet, text)) for text in ranges}
    distinct = int(np.count_nonzero(counts[FIRST:]))
    truncated = facet.kind == "term" and distinct > len(terms)
    listed = {text: number for text, number in terms.items() if number}
    listed |= {text: count(term) for text, term in chosen.items() if term.word is None and text not in listed}
    if "~other" in chosen or (truncated and limit is None and facet.key not in query.find):
        listed["~other"] = selected.count(matching.others(facet))
    unknown = selected.count_code(NONE)
    if facet.key not in query.find or chosen.keys() & {"~na", "~none"}:
        listed |= {"~na": selected.count_code(ABSENT), "~none": unknown}
    toggle = matching.toggles.toggle
    return FacetView(
        facet=facet,
        total=base.records,
        unknown=unknown,
        distinct=distinct,
        truncated=truncated,
        values=tuple(
            FacetValue(text, _label_of(facet, text, label), number, text in chosen, toggle(facet.key, text))
            for text, number in listed.items()
            if number or text in chosen
        ),
        find=query.find.get(facet.key, ""),
    )


def _label_of(facet: Facet, text: str, label: Labeller) -> str:
    if facet.kind == "term" and not text.startswith("~"):
        return label(facet.key, text)
    return term_label(facet, parse_term(facet, text), label)


def _codes(matching: Matching, facet: Facet, counts: Ints, label: Labeller, limit: int | None) -> list[int]:
    find = matching.query.find.get(facet.key)
    if find is not None:
        return _found(matching.column(facet), counts, facet, find, label)
    if limit is not None:
        by_count = np.argsort(-counts[FIRST:], kind="stable")[:limit] + FIRST
        return [int(code) for code in by_count if counts[code]]
    return _listed(matching, facet, counts)


def _listed(matching: Matching, facet: Facet, counts: Ints) -> list[int]:
    """The catalogue's most frequent values that occur here, filled up with the most frequent ones here."""
    frequent = [code for code in matching.frequent(facet) if counts[code]]
    most = [position + FIRST for position in top_codes(counts[FIRST:], matching.query.top)]
    missing = max(len(most) - len(frequent), 0)
    codes = frequent + [code for code in most if code not in set(frequent)][:missing]
    return sorted(codes, key=lambda code: (-counts[code], code))


def _found(column: Column, counts: Ints, facet: Facet, find: str, label: Labeller) -> list[int]:
    wanted = fold(find)
    codes = [
        int(position) + FIRST
        for position in np.flatnonzero(counts[FIRST:])
        if wanted in fold(column.values[position])
        or wanted in fold(label(facet.key, column.values[position]))
    ]
    return sorted(codes, key=lambda code: (-counts[code], code))[:FOUND_VALUES]


def fold(text: str) -> str:
    """Lower case, without accents and punctuation: ``fold("GLM-5.3 Flash") == "glm53flash"``."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return re.sub(r"[\W_]+", "", decomposed)


def term_label(facet: Facet, term: Term, label: Labeller) -> str:
    """What a reader sees for one term."""
    if term.word is not None:
        return facet.none_label if term.word == "none" else WORD_LABELS[term.word]
    if term.value is not None:
        return label(facet.key, term.value)
    low, dots, high = term.text.partition("..")
    closed = high.startswith("=")
    high = high.removeprefix("=")
    pretty = _pretty_date if facet.kind == "date" else _pretty_number
    unit = f" {facet.unit}" if facet.unit and facet.kind == "number" else ""
    if not dots:
        return pretty(low) + unit
    if not high:
        return f"from {pretty(low)}{unit}"
    if not low:
        return f"{'up to' if closed else 'below'} {pretty(high)}{unit}"
    return f"{pretty(low)} {'to' if closed else 'to under'} {pretty(high)}{unit}"


def _pretty_number(text: str) -> str:
    whole, dot, fraction = text.partition(".")
    return f"{int(whole):,}{dot}{fraction}"


def _pretty_date(text: str) -> str:
    if len(text) == len("2026"):
        return text
    day = dt.date.fromisoformat((text + "-01")[:10])
    return f"{day:%B} {day.year}" if len(text) == len("2026-10") else f"{day.day} {day:%B} {day.year}"


def _crumbs(query: Query, label: Labeller) -> tuple[Crumb, ...]:
    crumbs = []
    if query.search:
        crumbs.append(Crumb("Search", query.search, replace(query, search="", cursor="").query_string()))
    for key, held in query.filters.items():
        facet = BY_KEY[key]
        for name, (suffix, terms) in zip(("any_of", "all_of", "none_of"), held.parts(), strict=True):
            for term in terms:
                kept = tuple(item for item in terms if item is not term)
                removed = query.with_filter(key, replace(held, **{name: kept})).query_string()
                title = facet.label + {"": "", ".all": " (all)", ".not": " (not)"}[suffix]
                crumbs.append(Crumb(title, term_label(facet, term, label), removed))
    return tuple(crumbs)


def _page(query: Query, start: int, version: str) -> str:
    text = base64.urlsafe_b64encode(f"{start}.{version[:12]}".encode()).decode().rstrip("=")
    return replace(query, cursor=text if start else "").query_string()


def _cursor_start(cursor: str, version: str, total: int) -> int:
    if not cursor:
        return 0
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        start, _, of_version = (
            base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii").partition(".")
        )
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise QueryError(
            "cursor", "it was not made by this catalogue", "start from the first page"
        ) from error
    if not (start.isdigit() and len(start) < 12):
        raise QueryError("cursor", "it was not made by this catalogue", "start from the first page")
    if of_version != version[:12]:
        raise QueryError("cursor", "the catalogue has changed since", "start from the first page")
    return min(int(start), total)
