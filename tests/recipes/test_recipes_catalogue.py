"""The shipped recipes drilled, standings, cursors, search, fits, and the store behind it."""

from __future__ import annotations

import datetime as dt
import sqlite3
from urllib.parse import parse_qsl

import pytest
from recipes_brute import TODAY

from tandem.recipes.catalogue import STORE_NAME, Catalogue
from tandem.recipes.columns import Base, Column, Members, accept
from tandem.recipes.fit import FitReport
from tandem.recipes.measurement import Confirmation, Machine
from tandem.recipes.query_error import QueryError, UnknownRecipeError
from tandem.recipes.userdata import add_confirmation

MAIN = "glm53-flash-2x64-layer-split"


def drill(catalogue, text):
    return catalogue.drilldown(catalogue.parse(parse_qsl(text, keep_blank_values=True)))


def ids(catalogue, text):
    found = drill(catalogue, text)
    return [row["id"] for row in catalogue.rows(found.query, found.rows)]


def counts(found, key):
    view = next(view for view in found.facets if view.facet.key == key)
    return {value.id: value.count for value in view.values}


def test_the_seed_pages_facets(shipped):
    found = drill(shipped, "model=glm-5.3-flash")
    assert found.total == 4
    assert counts(found, "cards") == {"2": 2, "3": 1, "4": 1}
    assert counts(found, "sold_gib") == {"8": 4}
    assert counts(found, "model") == {"glm-5.3-flash": 4, "smollm2-135m-instruct": 1}


def test_candidates_are_none_until_asked_for(shipped):
    assert counts(drill(shipped, "model=glm-5.3-flash"), "prefill_tps") == {"~none": 4}
    possible = counts(drill(shipped, "model=glm-5.3-flash&possible=1"), "prefill_tps")
    assert possible == {"1533": 3, "3161": 3, "~none": 1}


def test_filters_are_met_by_one_measurement(shipped):
    assert ids(shipped, "decode_tps=60..100&decode.class=easy") == [MAIN]
    assert ids(shipped, "decode_tps=60&decode.class=easy") == []


def test_intervals_overlap_unless_strict(made_up):
    wide, strict = drill(made_up, "decode_tps=30..100"), drill(made_up, "decode_tps=30..100&strict=1")
    assert 0 < strict.total < wide.total


def test_pages_join_to_the_whole_listing(made_up):
    text, seen = "sort=-decode_tps&limit=7", []
    while text is not None:
        found = drill(made_up, text)
        seen += found.rows
        text = found.next.removeprefix("?") if found.next else None
    assert seen == list(drill(made_up, "sort=-decode_tps&limit=250").rows)
    assert len(seen) == len(set(seen)) == 90


@pytest.mark.parametrize("cursor", ["x", "!!!!", "MC5hYmM", "é", "MTA", "LTUuMDAwMDAwMDAwMDAw"])
def test_foreign_cursors_are_refused(shipped, cursor):
    with pytest.raises(QueryError, match="cursor"):
        drill(shipped, f"cursor={cursor}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("k_hcfuse", [MAIN]),
        ("q8-staging", [MAIN]),
        ("SMOLLM2", ["smollm2-135m-demo"]),
        ("smol demo", ["smollm2-135m-demo"]),
        ("no such words", []),
        ("???", []),
        ('"quoted', []),
        ("title:glm", []),
        ("NEAR(glm, 2) OR *", []),
        ("'; DROP TABLE recipe; --", []),
    ],
)
def test_search(shipped, words, found):
    assert ids(shipped, f"q={words}") == found
    assert len(shipped.recipe_ids()) == 5


def test_search_within_a_facet_folds_case_and_punctuation(shipped):
    view = shipped.facet(shipped.parse([("find.model", "GLM 5 3")]), "model")
    assert [value.id for value in view.values] == ["glm-5.3-flash"]


class Judge:
    def fit(self, subject, geometry, hardware):
        if subject.request_tokens is None:
            return FitReport("unknown", "not stated")
        return FitReport("fits" if subject.request_tokens < 300_000 else "no", "by its length")


def test_fits_is_a_facet_of_profiles():
    catalogue = Catalogue(None, calculator=Judge(), today=TODAY)
    found = drill(catalogue, "hw=2x64gib")
    assert counts(found, "fits") == {"fits": 3, "no": 3}
    assert MAIN in ids(catalogue, "hw=2x64gib&fits=fits")
    # The default profile is too long; no one profile is q8, over 300,000 tokens and fits.
    assert MAIN not in ids(catalogue, "hw=2x64gib&fits=fits&context=300000..")
    assert counts(drill(catalogue, "grain=profile&hw=2x64gib"), "fits") == {"fits": 6, "no": 5}
    with pytest.raises(QueryError, match="which cards"):
        catalogue.parse([("fits", "fits")])


def test_unknown_recipes_suggest_near_ones(shipped):
    with pytest.raises(UnknownRecipeError) as caught:
        shipped.entry("glm53-flash-2x64")
    assert MAIN in caught.value.similar


def test_status_is_computed(shipped):
    standing = shipped.entry(MAIN).standing
    assert standing.status == "reported"
    assert "the engine's commit or image digest is not pinned" in standing.missing
    assert shipped.entry(MAIN).recipe.status_claimed.value == "proven"
    assert Catalogue(None, today=dt.date(2027, 9, 1)).entry(MAIN).standing.overlays == ("stale",)


def test_a_confirmation_changes_the_standing_and_survives_a_new_store(tmp_path):
    catalogue = Catalogue(tmp_path, today=TODAY)
    version = catalogue.version
    machine = Machine(card="CMP 170HX", cards=2)
    fails = Confirmation(
        by="me", date="2026-10-30", outcome="fails", profile="q8_384k", revision=1, machine=machine
    )
    path = add_confirmation(MAIN, fails, tmp_path)
    catalogue.refresh()
    assert catalogue.entry(MAIN).standing.overlays == ("broken",)
    assert catalogue.version != version
    assert ids(catalogue, "standing=broken") == [MAIN]
    catalogue.store.close()
    (tmp_path / STORE_NAME).write_bytes(b"not a database at all, long enough to be looked at" * 100)
    again = Catalogue(tmp_path, today=TODAY)
    assert again.entry(MAIN).standing.overlays == ("broken",)
    assert path.exists()


def test_a_store_of_a_newer_version_is_replaced(tmp_path):
    Catalogue(tmp_path, today=TODAY).store.close()
    with sqlite3.connect(tmp_path / STORE_NAME) as db:
        db.execute("INSERT INTO migration VALUES ('m999_from_the_future')")
    db.close()
    assert len(Catalogue(tmp_path, today=TODAY).recipe_ids()) == 5


def test_a_store_is_reused_while_the_files_are_the_same(tmp_path):
    first = Catalogue(tmp_path, today=TODAY)
    version = first.version
    with sqlite3.connect(tmp_path / STORE_NAME) as db:
        db.execute("UPDATE recipe SET title = 'from the store' WHERE id = ?", (MAIN,))
    db.close()
    second = Catalogue(tmp_path, today=TODAY)
    assert second.version == version
    assert "from the store" in [second._snapshot().index.titles[i] for i in range(5)]
    assert Catalogue(tmp_path, today=TODAY + dt.timedelta(days=1)).entry(MAIN).recipe.title.startswith("GLM")


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert len(Catalogue(blocked / "data", today=TODAY).recipe_ids()) == 5


def test_distinct_records_are_counted_alike_by_table_and_by_hash():
    import numpy as np

    records, codes = 3000, 1000  # more pairs than the table takes
    rng = np.random.default_rng(0)
    record = np.sort(np.concatenate([np.arange(records), rng.integers(0, records, 4000)]))
    code = rng.integers(0, codes, len(record))
    members = Members(record, records)
    column = Column(tuple(range(codes - 2)), (np.zeros(0), np.zeros(0)), code, None, members)
    chosen = rng.random(len(record)) < 0.5
    selection = column.select(Base(members, chosen))
    pairs = {(int(r), int(c)) for r, c in zip(record[chosen], code[chosen], strict=True)}
    assert selection.counts().tolist() == [sum(c == k for _, c in pairs) for k in range(codes)]
    some = accept(codes, [3, 4, 5, 700])
    assert selection.count(some) == len({r for r, c in pairs if c in (3, 4, 5, 700)})
    assert selection.count_code(7) == len({r for r, c in pairs if c == 7})
