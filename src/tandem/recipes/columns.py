"""One facet over one grain, as arrays: which records hold which values.

A *member* is one candidate for satisfying a group's filters together (facets.py); a record has one or more.
An *entry* is one value of one member::

    record  0        0        1        2          members, sorted by record
    member  0        1        2        3
    entries [q8]     [fp16]   [None]   [a, b]     codes: 0 none stated, 1 n/a, 2.. index into ``values`` + 2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.recipes.facets import Kind
from tandem.recipes.values import date_span

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NONE, ABSENT, FIRST = 0, 1, 2
"""Codes: nothing stated, cannot apply, and the first value's."""

_TABLE_LIMIT = 2_000_000
"""Up to so many (record, value) pairs a table of flags is quicker than hashing the pairs."""


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group: ``record[i]`` is member i's record, ascending; every record has one."""

    record: Ints
    records: int

    @property
    def one_each(self) -> bool:
        return len(self.record) == self.records

    def any_of(self, members: Bools) -> Bools:
        """Records with a member in ``members`` (bool per member)."""
        if self.one_each:
            return members
        hit = np.zeros(self.records, dtype=np.bool_)
        hit[self.record[members]] = True
        return hit


@dataclass(frozen=True, slots=True)
class Column:
    """``values`` ascend. ``member_of_entry`` is None where every member has exactly one entry.

    ``spans`` holds what each value covers as [low, high]: a number's interval, a date's first and last day.
    """

    values: tuple[Any, ...]
    spans: tuple[Floats, Floats]
    codes: Ints
    member_of_entry: Ints | None
    members: Members

    @property
    def code_count(self) -> int:
        return len(self.values) + FIRST

    def mask(self, accepted: Bools) -> Bools:
        """Members with an entry of an accepted code (bool per code)."""
        hits = accepted[self.codes]
        if self.member_of_entry is None:
            return hits
        mask = np.zeros(len(self.members.record), dtype=np.bool_)
        mask[self.member_of_entry[hits]] = True
        return mask

    def select(self, base: Base) -> Selection:
        """The entries of a base's members."""
        if base.index is None:
            if self.member_of_entry is None:
                return Selection(self, self.members.record, self.codes)
            return Selection(self, self.members.record[self.member_of_entry], self.codes)
        if self.member_of_entry is None:
            return Selection(self, base.record, self.codes[base.index])
        entry = np.flatnonzero(base.mask[self.member_of_entry])
        return Selection(self, self.members.record[self.member_of_entry[entry]], self.codes[entry])


class Base:
    """Some members of a group, in the forms that columns need: a mask, positions, and their records."""

    def __init__(self, members: Members, mask: Bools) -> None:
        self.mask = mask
        self.index = None if mask.all() else np.flatnonzero(mask)
        """None for all members."""
        self.record = members.record if self.index is None else members.record[self.index]
        self.records = count_runs(self.record)
        """Distinct records."""


def count_runs(ascending: Ints) -> int:
    """Distinct numbers in an ascending array."""
    return int(np.count_nonzero(ascending[1:] != ascending[:-1])) + min(len(ascending), 1)


class Selection:
    """Some entries of a column: ``record`` (ascending) and ``code`` of each."""

    def __init__(self, column: Column, record: Ints, code: Ints) -> None:
        self._column = column
        self._record = record
        self._code = code
        self.entries: Ints = np.bincount(code, minlength=column.code_count)
        """Entries per code. A record with several members may have several entries of one code."""

    def counts(self) -> Ints:
        """Distinct records per code."""
        codes, records = self._column.code_count, self._column.members.records
        if self._column.members.one_each:  # a member never repeats a value
            return self.entries
        place = self._code * records + self._record
        if records * codes > _TABLE_LIMIT:
            return np.bincount(np.unique(place) // records, minlength=codes)
        table = np.zeros((codes, records), dtype=np.bool_)
        table.reshape(-1)[place] = True
        return np.asarray([np.count_nonzero(row) for row in table], dtype=np.int64)

    def count(self, accepted: Bools) -> int:
        """Distinct records with an entry of any accepted code (bool per code)."""
        if self._column.members.one_each and self._column.member_of_entry is None:
            return int(self.entries[accepted].sum())
        return count_runs(self._record[accepted[self._code]])

    def count_code(self, code: int) -> int:
        """Distinct records with an entry of one code."""
        if self._column.members.one_each or not self.entries[code]:
            return int(self.entries[code])
        return count_runs(self._record[self._code == code])


class ColumnBuilder:
    """Collects one facet's values, table row by table row; then a column for any arrangement of the rows.

    Rows come in ascending order; those left out state nothing.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._codes: dict[Any, int] = {}
        self._flat: list[int] = []
        self._starts: list[int] = [0]

    def copy(self) -> ColumnBuilder:
        twin = ColumnBuilder(self._kind)
        twin._codes, twin._flat, twin._starts = dict(self._codes), list(self._flat), list(self._starts)
        return twin

    def add(self, row: int, values: Iterable[Any], not_applicable: bool = False) -> None:
        """``values`` are distinct."""
        self._fill(row)
        codes = [self._codes.setdefault(value, len(self._codes)) + FIRST for value in values]
        self._flat += codes or [ABSENT if not_applicable else NONE]
        self._starts.append(len(self._flat))

    def finish(self, rows: int) -> TableColumn:
        """The column of a table of so many rows."""
        self._fill(rows + 1)  # one more row that states nothing, as every table column ends with
        values = sorted(self._codes)
        rank = np.empty(len(values) + FIRST, dtype=np.int64)
        rank[:FIRST] = (NONE, ABSENT)
        for position, value in enumerate(values):
            rank[self._codes[value] + FIRST] = position + FIRST
        flat = rank[np.asarray([*self._flat, ABSENT], dtype=np.int64)]
        starts = np.asarray([*self._starts, self._starts[-1] + 1], dtype=np.int64)
        return TableColumn(tuple(values), _spans(values, self._kind), flat, starts)

    def _fill(self, row: int) -> None:
        missing = row - (len(self._starts) - 1)
        if missing > 0:
            end = len(self._flat)
            self._flat += [NONE] * missing
            self._starts += range(end + 1, end + missing + 1)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Codes per row of a table; the last two rows are 'nothing stated' and 'cannot apply'."""

    values: tuple[Any, ...]
    spans: tuple[Floats, Floats]
    flat: Ints
    starts: Ints

    def arrange(self, rows: Ints, members: Members) -> Column:
        """The column whose member i has the entries of row ``rows[i]``; -1 none stated, -2 cannot apply."""
        table_rows = len(self.starts) - 3
        rows = np.where(rows == -1, table_rows, np.where(rows == -2, table_rows + 1, rows))
        lengths = self.starts[rows + 1] - self.starts[rows]
        if len(lengths) == 0 or lengths.max() == 1:
            return Column(self.values, self.spans, self.flat[self.starts[rows]], None, members)
        member = np.repeat(np.arange(len(rows)), lengths)
        first = np.repeat(self.starts[rows] - (np.cumsum(lengths) - lengths), lengths)
        return Column(self.values, self.spans, self.flat[first + np.arange(len(member))], member, members)


def _spans(values: list[Any], kind: Kind) -> tuple[Floats, Floats]:
    if kind == "number":
        pairs = [(low, high) for low, high in values]
    elif kind == "date":
        pairs = [(float(start), float(end - 1)) for start, end in map(date_span, values)]
    else:
        pairs = []
    array = np.asarray(pairs, dtype=np.float64).reshape(len(pairs), 2)
    return np.ascontiguousarray(array[:, 0]), np.ascontiguousarray(array[:, 1])


def accept(code_count: int, codes: Sequence[int]) -> Bools:
    """A bool per code, true for those given."""
    accepted = np.zeros(code_count, dtype=np.bool_)
    accepted[list(codes)] = True
    return accepted
