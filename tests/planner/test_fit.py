"""The verdict, the levers, and our own reach on the cards of the source recipe."""

import json

import pytest

from tandem.api.dimensions import footprint_of_dimensions
from tandem.core.plan import GIB, Card
from tandem.planner.engines import drafter_bytes
from tandem.planner.fit import explain, fit
from tandem.planner.geometry import EXL3_3_05_BITS, GLM_5_3_FLASH
from tandem.planner.place import PlanRequest

G, BITS = GLM_5_3_FLASH, EXL3_3_05_BITS


def two_cards(gib=64):
    return tuple(Card("cuda", i, gib * GIB) for i in range(2))


def glm(kv, context, drafter="dflash2"):
    footprint = footprint_of_dimensions(G, BITS, kv_format=kv, chunk_tokens=2048)
    request = PlanRequest(
        context_tokens=context,
        max_slots=1,
        page_tokens=256,
        chunk_tokens=2048,
        runtime_bytes=700 * 1024**2,
        spare=1,
        embedding_may_leave=True,
        drafter_bytes=drafter_bytes(G, BITS, drafter, context),
    )
    return footprint, request


@pytest.mark.parametrize("context", [393_216, 786_432, 1_048_576])
def test_two_64_gib_cards_hold_a_million_tokens_of_q8(context):
    report = fit(*_args("q8", context))
    assert report.verdict == "fits"
    assert report.max_context_tokens == 1_048_576
    assert report.exit_code == 0


def _args(kv, context, gib=64):
    footprint, request = glm(kv, context)
    return footprint, two_cards(gib), request


def test_two_48_gib_cards_do_not_hold_the_model():
    report = fit(*_args("q8", 393_216, gib=48))
    assert report.verdict == "no"
    assert report.max_context_tokens == 0
    assert report.exit_code == 4


def test_levers_name_what_reaches_further():
    footprint, request = glm("fp16", 1_048_576)
    q8, q8_request = glm("q8", 1_048_576)
    report = fit(footprint, two_cards(62), request, (("--kv q8", q8, q8_request),))
    assert report.verdict == "no"
    assert [lever.change.split()[0] for lever in report.levers] == ["--context", "--kv"]
    assert report.levers[1].context_tokens > report.levers[0].context_tokens


def test_the_report_is_json_and_sentences():
    report = fit(*_args("q8", 393_216))
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == "fits"
    text = "\n".join(explain(report))
    assert "cuda:0 holds layers 0 to" in text
    assert "tightest card" in text
