"""The drilldown's rules a second time: plain Python over recipes, no index and no arrays."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass

from tandem.recipes.facets import BY_KEY, METRIC_GROUPS, Cell, Facet
from tandem.recipes.facts import fact_sheet
from tandem.recipes.query import Query
from tandem.recipes.status import engine_majors, standing_of
from tandem.recipes.synthetic import synthetic_models, synthetic_recipes
from tandem.recipes.terms import Term
from tandem.recipes.values import date_span

TODAY = dt.date(2026, 11, 1)
NOTHING = Cell()
WORDS = {"~none", "~na"}
ABSENT = Cell(not_applicable=True)


@functools.cache
def made_up_files():
    """(files, models) of 90 made-up recipes."""
    return list(synthetic_recipes(90, seed=7)), synthetic_models(40)


@dataclass
class Record:
    recipe: int
    title: str
    groups: dict[str, list[dict[str, Cell]]]


def records(files, models, today: dt.date, grain: str) -> list[Record]:
    found = []
    majors = engine_majors(file.recipe for file in files)
    for number, file in enumerate(files):
        standing = standing_of(file.recipe, today.toordinal(), majors)
        sheet = fact_sheet(file.recipe, models[file.recipe.model], standing, file.origin)
        measured = {name: [m for m in sheet.measurements if m.group == name] for name in METRIC_GROUPS}
        if grain == "recipe":
            groups = {name: [m.cells for m in held] or [{}] for name, held in measured.items()}
            groups |= {"recipe": [sheet.cells], "profile": [m.cells for m in sheet.profiles]}
            found.append(Record(number, file.recipe.title, groups))
        elif grain == "profile":
            for profile in sheet.profiles:
                groups = {
                    name: [m.cells for m in held if m.profile == profile.profile] or [{}]
                    for name, held in measured.items()
                }
                groups |= {"recipe": [sheet.cells], "profile": [profile.cells]}
                found.append(Record(number, file.recipe.title, groups))
        else:
            for item in sheet.measurements:
                absent = dict.fromkeys(BY_KEY, ABSENT)
                groups = {name: [item.cells if item.group == name else absent] for name in METRIC_GROUPS}
                own = {} if item.profile is None else sheet.profiles[item.profile].cells
                groups |= {"recipe": [sheet.cells], "profile": [own], "measurement": [item.cells]}
                found.append(Record(number, file.recipe.title, groups))
    return found


class Brute:
    def __init__(self, all_records: list[Record], query: Query) -> None:
        self.records = all_records
        self.query = query
        self._frequent: dict[str, set[str]] = {}
        self._satisfied: dict[tuple[int, str], bool] = {}
        self._bases: dict[tuple[int, str], list[dict[str, Cell]]] = {}

    def values(self, facet: Facet, cells: dict[str, Cell]) -> list:
        cell = cells.get(facet.key, NOTHING)
        both = (*cell.values, *(cell.possible if self.query.possible else ()))
        return list(dict.fromkeys(both)) or (["~na"] if cell.not_applicable else ["~none"])

    def holds(self, facet: Facet, term: Term, value) -> bool:
        if value in ("~na", "~none"):
            return term.text == value
        if term.word == "other":
            return value not in self.frequent(facet.key)
        if term.word is not None:
            return False
        if facet.kind == "term":
            return term.value == value
        bounds = term.bounds
        if facet.kind == "date":
            first, after = date_span(value)
            return bounds.low <= first and after - 1 <= bounds.high
        low, high = value
        below = (lambda a: a <= bounds.high) if bounds.closed else (lambda a: a < bounds.high)
        if self.query.strict:
            return low >= bounds.low and below(high)
        return high >= bounds.low and below(low)

    def satisfies(self, cells: dict[str, Cell], key: str) -> bool:
        known = self._satisfied.get((id(cells), key))
        if known is None:
            known = self._satisfied[id(cells), key] = self._satisfies(cells, key)
        return known

    def _satisfies(self, cells: dict[str, Cell], key: str) -> bool:
        facet = BY_KEY[key]
        held = self.query.filter_of(key)
        values = self.values(facet, cells)
        any_of = not held.any_of or any(self.holds(facet, t, v) for t in held.any_of for v in values)
        all_of = all(any(self.holds(facet, t, v) for v in values) for t in held.all_of)
        none_of = not any(self.holds(facet, t, v) for t in held.none_of for v in values)
        return any_of and all_of and none_of

    def matching(self, record: Record) -> bool:
        return all(
            any(
                all(self.satisfies(cells, key) for key in self.query.filters if BY_KEY[key].group == group)
                for cells in members
            )
            for group, members in record.groups.items()
        )

    def base_members(self, record: Record, key: str) -> list[dict[str, Cell]]:
        """The members of the facet's group that satisfy its other filters, if the record matches."""
        if (id(record), key) not in self._bases:
            self._bases[id(record), key] = self._base_members(record, key)
        return self._bases[id(record), key]

    def _base_members(self, record: Record, key: str) -> list[dict[str, Cell]]:
        keys = [other for other in self.query.filters if other != key]
        held = {
            group: [c for c in members if all(self.satisfies(c, k) for k in keys if BY_KEY[k].group == group)]
            for group, members in record.groups.items()
        }
        return held[BY_KEY[key].group] if all(held.values()) else []

    def count(self, key: str, term: Term) -> int:
        facet = BY_KEY[key]
        return sum(
            any(
                self.holds(facet, term, value)
                for cells in self.base_members(record, key)
                for value in self.values(facet, cells)
            )
            for record in self.records
        )

    def tally(self, key: str) -> dict[str, int]:
        facet = BY_KEY[key]
        counts: dict[str, int] = {}
        for record in self.records:
            for value in {v for c in self.base_members(record, key) for v in self.values(facet, c)}:
                counts[value] = counts.get(value, 0) + 1
        return counts

    def frequent(self, key: str) -> set[str]:
        if key not in self._frequent:
            counts: dict[str, int] = {}
            facet = BY_KEY[key]
            for record in self.records:
                for value in {v for c in record.groups[facet.group] for v in self.values(facet, c)} - WORDS:
                    counts[value] = counts.get(value, 0) + 1
            self._frequent[key] = top(counts, self.query.top)
        return self._frequent[key]


def top(counts: dict[str, int], limit: int) -> set[str]:
    order = sorted(counts, key=lambda value: (-counts[value], value))
    if len(order) <= limit:
        return set(order)
    tied = sum(counts[value] >= counts[order[limit - 1]] for value in order)
    return set(order[: tied if tied <= 2 * limit else limit])
