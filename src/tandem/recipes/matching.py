"""Evaluating a query over the index: which records match, and the base that each facet is counted on."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from tandem.recipes.buckets import top_codes
from tandem.recipes.columns import ABSENT, FIRST, NONE, Base, Bools, Column, Ints, accept
from tandem.recipes.facets import Facet, Group, facets_of
from tandem.recipes.index import CatalogueIndex
from tandem.recipes.query import Query, Toggles
from tandem.recipes.terms import Term, within


class Matching:
    """One query against one index. ``fits`` is the computed column of the query's hardware, if any.

    A record matches when it is found by the search and each group has a member that satisfies all the
    group's filters. The base of facet F is the members of F's group whose record satisfies everything but
    F's own filter.
    """

    def __init__(self, index: CatalogueIndex, query: Query, found: Ints | None, fits: Column | None) -> None:
        self.query = query
        self.toggles = Toggles(query)
        self.grain = index.grain(query.grain)
        self.facets = tuple(
            facet for facet in facets_of(query.grain) if facet.key != "fits" or fits is not None
        )
        self._fits = fits
        self._by_key = {facet.key: facet for facet in self.facets}
        self._searched = self._found_records(index, found)
        self._masks: dict[str, Bools] = {}
        self._bases: dict[tuple[Group, str | None], Base] = {}
        for key in query.filters:
            self._masks[key] = self._filter_mask(key)

    def column(self, facet: Facet) -> Column:
        if facet.key == "fits":
            assert self._fits is not None
            return self._fits
        return self.grain.column(facet, self.query.possible)

    def records(self) -> Bools:
        """Bool per record."""
        matched = self._searched
        for group in self.grain.members:
            members = self._group_mask(group)
            if members is not None:
                matched = matched & self.grain.members[group].any_of(members)
        return matched

    def base(self, facet: Facet) -> Base:
        """The members of the facet's group to count it on; shared by facets without a filter of their own."""
        key = facet.key if facet.key in self._masks else None
        held = self._bases.get((facet.group, key))
        if held is None:
            held = self._bases[facet.group, key] = self._base(facet.group, key)
        return held

    def _base(self, own: Group, without: str | None) -> Base:
        matched = self._searched
        for group in self.grain.members:
            found = None if group == own else self._group_mask(group)
            if found is not None:
                matched = matched & self.grain.members[group].any_of(found)
        members = self.grain.members[own]
        mask = matched if members.one_each else matched[members.record]
        filtered = self._group_mask(own, without=without)
        return Base(members, mask if filtered is None else mask & filtered)

    def frequent(self, facet: Facet) -> list[int]:
        """Codes of the catalogue's ``top`` most frequent values, whatever else is filtered."""
        if facet.key == "fits":
            return list(range(FIRST, self.column(facet).code_count))
        counts = self.grain.frequencies(facet.key, self.column(facet), self.query.possible)
        return [position + FIRST for position in top_codes(counts[FIRST:], self.query.top)]

    def others(self, facet: Facet) -> Bools:
        """Bool per code: what ``~other`` stands for. It means the same under any other filter."""
        accepted = np.ones(self.column(facet).code_count, dtype=np.bool_)
        accepted[[NONE, ABSENT, *self.frequent(facet)]] = False
        return accepted

    def accepted(self, facet: Facet, term: Term) -> Bools:
        """Bool per code of the facet's column."""
        column = self.column(facet)
        if term.word == "none":
            return accept(column.code_count, [NONE])
        if term.word == "na":
            return accept(column.code_count, [ABSENT])
        if term.word == "other":
            return self.others(facet)
        if term.bounds is not None:
            held = within(facet, term.bounds, column.spans, self.query.strict)
            return np.concatenate([np.zeros(FIRST, dtype=np.bool_), held])
        code = _position(column.values, term.value)
        return accept(column.code_count, [] if code is None else [code + FIRST])

    def _found_records(self, index: CatalogueIndex, found: Ints | None) -> Bools:
        if found is None:
            return np.ones(self.grain.records, dtype=np.bool_)
        recipes = np.zeros(len(index.recipe_ids), dtype=np.bool_)
        recipes[found] = True
        owner = index.owner(self.query.grain)
        return recipes if owner is None else recipes[owner]

    def _group_mask(self, group: Group, *, without: str | None = None) -> Bools | None:
        mask: Bools | None = None
        for key, own in self._masks.items():
            if key != without and self._by_key[key].group == group:
                mask = own if mask is None else mask & own
        return mask

    def _filter_mask(self, key: str) -> Bools:
        facet = self._by_key[key]
        column = self.column(facet)
        held = self.query.filter_of(key)
        mask = np.ones(len(column.members.record), dtype=np.bool_)
        if held.any_of:
            mask &= column.mask(self._any(facet, held.any_of))
        for term in held.all_of:
            mask &= column.mask(self.accepted(facet, term))
        if held.none_of:
            mask &= ~column.mask(self._any(facet, held.none_of))
        return mask

    def _any(self, facet: Facet, terms: tuple[Term, ...]) -> Bools:
        accepted = self.accepted(facet, terms[0])
        for term in terms[1:]:
            accepted = accepted | self.accepted(facet, term)
        return accepted


def _position(values: tuple[str, ...], value: str | None) -> int | None:
    if value is None:
        return None
    position = bisect_left(values, value)
    return position if position < len(values) and values[position] == value else None
