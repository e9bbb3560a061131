"""The whole catalogue as columns in memory, at each of the three grains. Read-only once built."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from tandem.recipes.columns import FIRST, Base, Column, ColumnBuilder, Ints, Members, TableColumn
from tandem.recipes.facets import BY_KEY, FACETS, METRIC_GROUPS, Cells, Facet, Grain, Group
from tandem.recipes.store import Store

_MISSING, _ABSENT = -1, -2


class GrainIndex:
    """The columns of one grain. ``ids`` are the store's ordinals of the records."""

    def __init__(self, grain: Grain, records: int, links: dict[Group, tuple[Ints, Ints]]) -> None:
        self.grain: Grain = grain
        self.records = records
        self.members = {group: Members(record, records) for group, (record, _) in links.items()}
        self._rows = {group: rows for group, (_, rows) in links.items()}
        self._columns: dict[tuple[str, bool], Column] = {}
        self._frequencies: dict[tuple[str, bool], Ints] = {}

    def add(self, key: str, possible: bool, column: TableColumn) -> None:
        group = BY_KEY[key].group
        if group in self._rows:
            self._columns[key, possible] = column.arrange(self._rows[group], self.members[group])

    def column(self, facet: Facet, possible: bool) -> Column:
        """Candidates of unresolved values count as values with ``possible``."""
        found = self._columns.get((facet.key, possible))
        return self._columns[facet.key, False] if found is None else found

    def arrange(self, facet: Facet, column: TableColumn) -> Column:
        """A column that is not kept, such as a computed one."""
        return column.arrange(self._rows[facet.group], self.members[facet.group])

    @staticmethod
    def every(members: Members) -> Base:
        return Base(members, np.ones(len(members.record), dtype=np.bool_))

    def frequencies(self, key: str, column: Column, possible: bool) -> Ints:
        """Records per code over the whole grain."""
        held = self._frequencies.get((key, possible))
        if held is None:
            held = column.select(self.every(column.members)).counts()
            self._frequencies[key, possible] = held
        return held

    def order(self, key: str, descending: bool, possible: bool) -> Ints:
        """All records in the order of a facet; those without a value come last, ties by ordinal."""
        column = self.column(BY_KEY[key], possible)
        code = column.codes
        record = column.members.record
        if column.member_of_entry is not None:
            record = record[column.member_of_entry]
        stated = code >= FIRST
        worst = column.code_count + 1
        if descending:
            best = np.full(self.records, -1, dtype=np.int64)
            np.maximum.at(best, record[stated], code[stated])
            rank = np.where(best < 0, worst, column.code_count - best)
        else:
            rank = np.full(self.records, worst, dtype=np.int64)
            np.minimum.at(rank, record[stated], code[stated])
        return np.argsort(rank, kind="stable")


class CatalogueIndex:
    """Built from the store in one pass; the grains other than ``recipe`` are arranged at first use."""

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._grains: dict[Grain, GrainIndex] = {}
        self._orders: dict[tuple[Grain, str, bool, bool], Ints] = {}
        tables: dict[str, tuple[Facet, ...]] = {
            "recipe": tuple(facet for facet in FACETS if facet.group == "recipe"),
            "profile": tuple(facet for facet in FACETS if facet.group == "profile" and facet.key != "fits"),
            "measurement": tuple(facet for facet in FACETS if facet.group in (*METRIC_GROUPS, "measurement")),
        }
        ids: list[str] = []
        titles: list[str] = []
        sink = _TableSink(tables["recipe"])
        for identity, title, cells in store.recipe_cells():
            ids.append(identity)
            titles.append(title)
            sink.add(cells)
        self.recipe_ids = tuple(ids)
        self.titles = tuple(titles)
        self.title_order = np.asarray(
            sorted(range(len(ids)), key=lambda i: (titles[i].casefold(), i)), dtype=np.int64
        )
        self._tables = sink.finish()
        for kind in ("profile", "measurement"):
            sink = _TableSink(tables[kind])
            rows = []
            for ordinal, recipe, group, profile, cells in store.member_cells(kind == "profile"):
                rows.append((ordinal, recipe, group, -1 if profile is None else profile))
                sink.add(cells)
            if kind == "profile":
                self.profile_ordinals = _column(rows, 0)
                self.profile_recipe = _column(rows, 1)
            else:
                self.measurement_ordinals = _column(rows, 0)
                self.measurement_recipe = _column(rows, 1)
                self.measurement_group = [row[2] for row in rows]
                self.measurement_profile = self._global_profile(_column(rows, 3))
            self._tables |= sink.finish()

    def _global_profile(self, position: Ints) -> Ints:
        """Rows of the profile table for (recipe, position in it); -1 where no profile is told."""
        first = np.searchsorted(self.profile_recipe, np.arange(len(self.recipe_ids)))
        return np.where(position < 0, -1, first[self.measurement_recipe] + position)

    def grain(self, grain: Grain) -> GrainIndex:
        with self._lock:
            found = self._grains.get(grain)
            if found is None:
                found = self._arrange(grain)
                self._grains[grain] = found
            return found

    def order(self, grain: Grain, key: str | None, descending: bool, possible: bool) -> Ints:
        """All records in listing order; by title (of the recipe) where ``key`` is None."""
        index = self.grain(grain)
        with self._lock:
            found = self._orders.get((grain, key or "", descending, possible))
            if found is None:
                found = self._by_title(grain) if key is None else index.order(key, descending, possible)
                if key is None and descending:
                    found = found[::-1]
                self._orders[grain, key or "", descending, possible] = found
            return found

    def _by_title(self, grain: Grain) -> Ints:
        if grain == "recipe":
            return self.title_order
        rank = np.empty(len(self.title_order), dtype=np.int64)
        rank[self.title_order] = np.arange(len(rank))
        owner = self.profile_recipe if grain == "profile" else self.measurement_recipe
        return np.argsort(rank[owner], kind="stable")

    def owner(self, grain: Grain) -> Ints | None:
        """The recipe of each record; None where the records are recipes."""
        if grain == "recipe":
            return None
        return self.profile_recipe if grain == "profile" else self.measurement_recipe

    def ordinals(self, grain: Grain, records: Ints) -> list[int]:
        """The store's ordinals of records."""
        if grain == "recipe":
            return [int(record) for record in records]
        table = self.profile_ordinals if grain == "profile" else self.measurement_ordinals
        return [int(ordinal) for ordinal in table[records]]

    def _arrange(self, grain: Grain) -> GrainIndex:
        count = {
            "recipe": len(self.recipe_ids),
            "profile": len(self.profile_recipe),
            "measurement": len(self.measurement_recipe),
        }[grain]
        every = np.arange(count)
        owner = self.owner(grain)
        links: dict[Group, tuple[Ints, Ints]] = {"recipe": (every, every if owner is None else owner)}
        if grain == "recipe":
            links["profile"] = (self.profile_recipe, np.arange(len(self.profile_recipe)))
        elif grain == "profile":
            links["profile"] = (every, every)
        else:
            links["profile"] = (every, self.measurement_profile)
            links["measurement"] = (every, every)
        for group in METRIC_GROUPS:
            links[group] = self._metric_links(grain, group, count)
        index = GrainIndex(grain, count, links)
        for (key, possible), column in self._tables.items():
            index.add(key, possible, column)
        return index

    def _metric_links(self, grain: Grain, group: Group, count: int) -> tuple[Ints, Ints]:
        rows = np.asarray(
            [i for i, name in enumerate(self.measurement_group) if name == group], dtype=np.int64
        )
        if grain == "measurement":
            links = np.full(count, _ABSENT, dtype=np.int64)
            links[rows] = rows
            return np.arange(count), links
        record = (self.measurement_recipe if grain == "recipe" else self.measurement_profile)[rows]
        rows, record = rows[record >= 0], record[record >= 0]
        without = np.setdiff1d(np.arange(count), record)
        record = np.concatenate([record, without])
        rows = np.concatenate([rows, np.full(len(without), _MISSING, dtype=np.int64)])
        by_record = np.argsort(record, kind="stable")
        return record[by_record], rows[by_record]


class _TableSink:
    """Builders for one table's facets, each without and (where anything is unresolved) with candidates."""

    def __init__(self, facets: Sequence[Facet]) -> None:
        self._plain = {facet.key: ColumnBuilder(facet.kind) for facet in facets}
        self._possible: dict[str, ColumnBuilder] = {}
        self._rows = 0

    def add(self, cells: Cells) -> None:
        for key, cell in cells.items():
            plain = self._plain[key]
            if cell.possible and key not in self._possible:
                self._possible[key] = plain.copy()
            plain.add(self._rows, cell.values, cell.not_applicable)
            if key in self._possible:
                both = dict.fromkeys((*cell.values, *cell.possible))
                self._possible[key].add(self._rows, both, cell.not_applicable)
        self._rows += 1

    def finish(self) -> dict[tuple[str, bool], TableColumn]:
        tables = {(key, False): builder.finish(self._rows) for key, builder in self._plain.items()}
        tables |= {(key, True): builder.finish(self._rows) for key, builder in self._possible.items()}
        return tables


def _column(rows: list[tuple[int, int, str, int]], position: int) -> Ints:
    return np.asarray([row[position] for row in rows], dtype=np.int64)
