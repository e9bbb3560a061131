"""Placement: exact accounting, best cuts, clear refusals."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.errors import BudgetError, SettingsError
from tandem.core.plan import MIB, CacheSpec, Card, ModelFootprint
from tandem.planner.engines import shared_selection_cuts
from tandem.planner.geometry import GLM_5_3_FLASH
from tandem.planner.place import PlanRequest, best_effort_plan, max_context_tokens, place


def footprint(layers=12, layer_bytes=10 * MIB, per_token=1024.0, **changes):
    values = {
        "architecture": "test",
        "layer_weight_bytes": (layer_bytes,) * layers,
        "embedding_bytes": 20 * MIB,
        "head_bytes": 5 * MIB,
        "tied_head": False,
        "layer_cache": (CacheSpec(per_token),) * layers,
        "residual_bytes_per_token": 4096,
        "workspace_bytes": MIB,
        "native_context_tokens": 8192,
    }
    return ModelFootprint(**(values | changes))


def cards(*budgets):
    return tuple(Card("cpu", i, budget) for i, budget in enumerate(budgets))


def test_one_card_holds_everything():
    plan = place(footprint(), cards(1024 * MIB), PlanRequest())
    (stage,) = plan.stages
    assert (stage.first_layer, stage.end_layer, stage.has_embedding, stage.has_head) == (0, 12, True, True)
    by_name = {term.name: term.bytes for term in plan.terms}
    assert by_name["weights"] == 120 * MIB
    assert by_name["kv_pages"] == plan.total_pages * plan.page_tokens * 12 * 1024
    assert "transfer" not in by_name


@pytest.mark.parametrize(
    ("kind", "budget_mib", "tied", "leaves"),
    [
        ("cuda", 222, False, False),
        ("cuda", 220, False, True),  # it would fit, but not if the workspace is as much more as it may be
        ("cuda", 210, False, True),
        ("cpu", 220, False, False),
        ("cuda", 220, True, False),
    ],
)
def test_the_embedding_leaves_a_cuda_card_that_may_be_short(kind, budget_mib, tied, leaves):
    """193 MiB with 20 of workspace, an estimate, and 20 more of the table."""
    model = footprint(workspace_bytes=20 * MIB, tied_head=tied)
    card = (Card(kind, 0, budget_mib * MIB),)
    request = PlanRequest(context_tokens=4096, chunk_tokens=128, max_slots=1, embedding_may_leave=True)
    plan = place(model, card, request)
    terms = {term.name for term in plan.terms}
    assert plan.stages[0].embedding_on_host is leaves
    assert ("embedding" in terms) is not leaves
    kept = best_effort_plan(model, card, replace(request, embedding_may_leave=False), 4096)
    assert kept.card_bytes(card[0].name) - plan.card_bytes(card[0].name) == (20 * MIB if leaves else 0)


def test_the_pool_holds_whole_chunks():
    plan = place(footprint(), cards(1024 * MIB), PlanRequest(context_tokens=1000, chunk_tokens=128))
    assert plan.total_pages * plan.page_tokens == 1024


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    layer_mib=st.lists(st.integers(1, 40), min_size=3, max_size=9),
    budgets=st.lists(st.integers(100, 900), min_size=1, max_size=3),
)
def test_no_other_cut_leaves_more_room(layer_mib, budgets):
    model = footprint(
        layers=len(layer_mib),
        layer_weight_bytes=tuple(n * MIB for n in layer_mib),
        layer_cache=(CacheSpec(64.0),) * len(layer_mib),
    )
    held = cards(*(n * MIB for n in budgets))
    request = PlanRequest(context_tokens=1024)

    def tightest(plan):
        return min((c.budget_bytes - plan.card_bytes(c.name)) / c.budget_bytes for c in held)

    try:
        plan = place(model, held, request)
    except BudgetError:
        plan = None
    best = -1.0
    for cuts in itertools.combinations(range(1, len(layer_mib)), len(budgets) - 1):
        bounds = (0, *cuts, len(layer_mib))
        split = tuple(b - a for a, b in itertools.pairwise(bounds))
        try:
            other = place(model, held, PlanRequest(context_tokens=1024, split=split))
        except BudgetError:
            continue
        best = max(best, tightest(other))
    if plan is None:
        assert best == -1.0
    else:
        assert tightest(plan) == pytest.approx(best)


def test_unequal_cards_get_unequal_shares():
    plan = place(footprint(), cards(70 * MIB, 200 * MIB), PlanRequest(context_tokens=1024))
    first, second = plan.stages
    assert first.end_layer - first.first_layer < second.end_layer - second.first_layer


def test_a_manual_split_is_obeyed():
    plan = place(footprint(), cards(500 * MIB, 500 * MIB), PlanRequest(split=(2, 10)))
    assert [s.end_layer for s in plan.stages] == [2, 12]


@pytest.mark.parametrize("split", [(12,), (6, 5), (0, 12), (4, 4, 4)])
def test_a_wrong_split_is_refused(split):
    with pytest.raises(SettingsError, match="12 layers"):
        place(footprint(), cards(500 * MIB, 500 * MIB), PlanRequest(split=split))


def test_too_small_a_budget_names_card_bytes_and_a_context_that_fits():
    request = PlanRequest(context_tokens=8192)
    held = cards(200 * MIB)
    with pytest.raises(BudgetError) as caught:
        place(footprint(), held, request)
    assert "cpu:0" in str(caught.value)
    largest = max_context_tokens(footprint(), held, request)
    assert f"--context {largest}" in str(caught.value)
    assert place(footprint(), held, PlanRequest(context_tokens=largest)).context_tokens == largest
    with pytest.raises(BudgetError):
        place(footprint(), held, PlanRequest(context_tokens=largest + 128))


def test_without_a_context_the_largest_that_fits_is_taken():
    plan = place(footprint(), cards(200 * MIB), PlanRequest())
    assert 0 < plan.context_tokens < 8192


def test_weights_that_never_fit_say_so():
    with pytest.raises(BudgetError, match="more or larger cards"):
        place(footprint(), cards(50 * MIB), PlanRequest())


def test_the_shortage_named_is_that_of_the_shortest_context():
    held = cards(100 * MIB)
    with pytest.raises(BudgetError, match="even the shortest context lacks") as caught:
        place(footprint(), held, PlanRequest(context_tokens=8192))
    with pytest.raises(BudgetError) as shortest:
        place(footprint(), held, PlanRequest(context_tokens=128))
    assert caught.value.remedy == shortest.value.remedy


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(SettingsError, match="--context 8192"):
        place(footprint(), cards(1024 * MIB), PlanRequest(context_tokens=9000))


def test_a_tied_head_on_another_card_is_a_second_table():
    model = footprint(tied_head=True, head_bytes=1)
    plan = place(model, cards(500 * MIB, 500 * MIB), PlanRequest())
    assert sum(t.name == "embedding" for t in plan.terms) == 2


def test_states_are_counted_per_slot():
    model = footprint(layer_cache=(CacheSpec(0.0, 1000),) * 12)
    plan = place(model, cards(500 * MIB), PlanRequest(max_slots=3))
    assert next(t.bytes for t in plan.terms if t.name == "states") == 36_000


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    forbidden=st.sets(st.integers(1, 11), max_size=9),
    budgets=st.lists(st.integers(100, 900), min_size=1, max_size=3),
)
def test_no_card_begins_at_a_layer_that_needs_the_one_before(forbidden, budgets):
    model = footprint(forbidden_cuts=tuple(sorted(forbidden)))
    held = cards(*(n * MIB for n in budgets))
    request = PlanRequest(context_tokens=1024)
    allowed = [cut for cut in range(1, 12) if cut not in forbidden]
    plan = best_effort_plan(model, held, request, 1024)
    assert [stage.first_layer for stage in plan.stages[1:]] == sorted(
        {stage.first_layer for stage in plan.stages[1:]} & set(allowed)
    )

    def tightest(cuts):
        ends = [*cuts, 12]
        split = tuple(end - first for first, end in itertools.pairwise([0, *ends]))
        manual = best_effort_plan(model, held, replace(request, split=split), 1024)
        return min(1 - manual.card_bytes(card.name) / card.budget_bytes for card in held)

    best = max(tightest(cuts) for cuts in itertools.combinations(allowed, len(held) - 1))
    assert tightest([stage.first_layer for stage in plan.stages[1:]]) == pytest.approx(best)


def test_a_split_inside_a_shared_selection_is_refused_with_places_that_are_not():
    model = footprint(forbidden_cuts=(4, 5, 6))
    with pytest.raises(SettingsError, match="begins a card at layer 5") as refused:
        place(model, cards(900 * MIB, 900 * MIB), PlanRequest(split=(5, 7)))
    assert "2, 3, 7, 8" in str(refused.value)


def test_more_cards_than_places_to_cut_are_refused():
    with pytest.raises(SettingsError, match="at most 2"):
        place(footprint(4, forbidden_cuts=(1, 3)), cards(*[900 * MIB] * 3), PlanRequest())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kinds=st.lists(st.sampled_from(["recurrent", "full", "shared"]), min_size=2, max_size=20))
def test_cuts_between_a_selection_and_its_users_are_the_forbidden_ones(kinds):
    kinds = ["full", *kinds]
    geometry = replace(
        GLM_5_3_FLASH,
        layer_is_mla=tuple(kind != "recurrent" for kind in kinds),
        layer_has_indexer=tuple(kind == "full" for kind in kinds),
    )
    expected = set()
    for layer, kind in enumerate(kinds):
        if kind == "shared":
            source = max(i for i in range(layer) if kinds[i] == "full")
            expected |= set(range(source + 1, layer + 1))
    assert set(shared_selection_cuts(geometry)) == expected
