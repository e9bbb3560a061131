"""Every count on every facet equals a recomputation in plain Python, under random filters at every grain."""

from __future__ import annotations

import functools
from urllib.parse import parse_qsl

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recipes_brute import TODAY, WORDS, Brute, made_up_files, records

from tandem.recipes.facets import GRAINS, facets_of
from tandem.recipes.query import parse_query
from tandem.recipes.terms import number_text, parse_term


@functools.cache
def _values(grain: str):
    """Terms worth filtering by, for each facet: values that occur or do not, ranges, reserved words."""
    files, models = made_up_files()
    seen: dict[str, set] = {}
    for record in records(files, models, TODAY, grain):
        for members in record.groups.values():
            for cells in members:
                for key, cell in cells.items():
                    seen.setdefault(key, set()).update((*cell.values, *cell.possible))
    terms = {}
    for facet in facets_of(grain):
        held = sorted(seen.get(facet.key, ()))[:25]
        if facet.key == "fits" or not held:
            continue
        if facet.kind == "number":
            bounds = sorted({number_text(v[0]) for v in held}, key=float)
            ranges = [f"{a}..{b}" for a, b in zip(bounds, bounds[3:], strict=False)]
            terms[facet.key] = [
                *bounds[:4],
                *ranges,
                f"..{bounds[-1]}",
                f"{bounds[0]}..={bounds[-1]}",
                "~none",
                "~na",
            ]
        elif facet.kind == "date":
            terms[facet.key] = [
                *held[:6],
                "2025",
                "2025-03..2026",
                "..=2024-06",
                "2026-01-05..",
                "~none",
                "~na",
            ]
        else:
            terms[facet.key] = [*held, "~none", "~na", "~other"]
            if facet.choices is None:
                terms[facet.key].append("no such value")
    return terms


@st.composite
def queries(draw):
    grain = draw(st.sampled_from(GRAINS))
    terms = _values(grain)
    facets = {facet.key: facet for facet in facets_of(grain)}
    params = [("grain", grain)]
    for key in draw(st.lists(st.sampled_from(sorted(terms)), max_size=4, unique=True)):
        for term in draw(st.lists(st.sampled_from(terms[key]), min_size=1, max_size=3, unique=True)):
            suffixes = ["", "", ".not"] + ([".all"] if facets[key].multi else [])
            params.append((key + draw(st.sampled_from(suffixes)), term))
    params += [("possible", draw(st.sampled_from("01"))), ("strict", draw(st.sampled_from("01")))]
    params.append(("top", str(draw(st.sampled_from((2, 5, 20))))))
    return params


@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_count_equals_brute_force(made_up, data):
    files, models = made_up_files()
    query = parse_query(data.draw(queries()))
    result = made_up.drilldown(query)
    brute = Brute(records(files, models, TODAY, query.grain), query)
    assert result.total == sum(map(brute.matching, brute.records))
    for view in result.facets:
        key = view.facet.key
        tally = brute.tally(key)
        stated = {value: number for value, number in tally.items() if value not in WORDS}
        assert view.unknown == tally.get("~none", 0), key
        assert view.distinct == len(stated), key
        assert view.total == sum(bool(brute.base_members(record, key)) for record in brute.records), key
        for value in view.values:
            assert value.count == brute.count(key, parse_term(view.facet, value.id)), (key, value.id)
            assert value.count or value.selected
        if view.facet.kind == "term":
            listed = {value.id for value in view.values}
            assert brute.frequent(key) & set(stated) <= listed
            assert "~other" in listed or set(stated) <= listed
        elif not query.strict:
            covered = [parse_term(view.facet, value.id) for value in view.values if value.id not in WORDS]
            assert all(any(brute.holds(view.facet, term, v) for term in covered) for v in stated), key


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_choosing_a_value_gives_the_total_that_its_count_promised(made_up, data):
    query = parse_query(data.draw(queries()))
    view = data.draw(st.sampled_from(made_up.drilldown(query).facets))
    if view.values and not query.filter_of(view.facet.key):
        value = data.draw(st.sampled_from(view.values))
        chosen = query.toggled(view.facet.key, parse_term(view.facet, value.id))
        assert made_up.drilldown(chosen).total == value.count
        assert value.toggle == chosen.query_string()


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_a_canonical_url_reads_back_as_itself(data):
    query = parse_query(data.draw(queries()))
    text = query.query_string()
    again = parse_query(parse_qsl(text.removeprefix("?"), keep_blank_values=True))
    assert again == query
    assert again.query_string() == text
