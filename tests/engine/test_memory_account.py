"""What an engine allocates beside its model is what the planner counted."""

import math

import pytest
from fake_stage import VOCAB, WIDTH, FakeStage

from tandem.core.plan import CacheSpec, Card, ModelFootprint
from tandem.engine.build import build_engine
from tandem.planner.place import PlanRequest, place

LAYERS, PAGE = 3, 64
FOOTPRINT = ModelFootprint(
    architecture="fake",
    layer_weight_bytes=(1000,) * LAYERS,
    embedding_bytes=0,
    head_bytes=0,
    tied_head=False,
    layer_cache=(CacheSpec(4.0, 4),) * LAYERS,
    residual_bytes_per_token=4 * WIDTH,
    workspace_bytes=0,
    native_context_tokens=1 << 20,
)
"""Exactly what a FakeStage keeps: nothing is left over to hide in."""


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("chunk", [4, 12, 20, 64, 128])
@pytest.mark.parametrize(("context", "slots"), [(1, 1), (5000, 3), (40_000, 8)])
def test_page_tables_rows_and_buffers_are_planned(chunk, stages, context, slots):
    cards = tuple(Card("cpu", index, 1 << 30) for index in range(stages))
    page = math.gcd(PAGE, chunk)
    request = PlanRequest(context, max_slots=slots, page_tokens=page, chunk_tokens=chunk)
    plan = place(FOOTPRINT, cards, request)
    models = [
        FakeStage(
            layers=range(stage.first_layer, stage.end_layer),
            pages=plan.total_pages,
            page_tokens=plan.page_tokens,
            slots=plan.max_slots,
        )
        for stage in plan.stages
    ]
    engine = build_engine(models, plan, residual_width=WIDTH, vocab_size=VOCAB)
    allocated = engine.memory()
    engine.shutdown()
    for card in cards:
        planned = {term.name: term.bytes for term in plan.terms if term.card == card.name}
        measured = {term.name: term.bytes for term in allocated if term.card == card.name}
        assert planned["layout"] == measured["layout"]
        if "transfer" in measured:
            assert planned["transfer"] == measured["transfer"]
