"""The small rehearsal on the processor: every step is there, every term, and what cannot be is said."""

from __future__ import annotations

import math

import pytest

from tandem.api import rehearse_small
from tandem.core.cards import parse_cards, resolve_cards
from tandem.core.errors import BudgetError
from tandem.core.plan import GIB, MIB


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CONTEXT_TOKENS", 512),
        ("CHUNK_TOKENS", 64),
        ("LONG_TOKENS", 64),
        ("SHORT_TOKENS", 8),
    ):
        monkeypatch.setattr(rehearse_small, name, value)
    monkeypatch.setattr(rehearse_small, "_REPEATS", 1)


@pytest.mark.slow
@pytest.mark.parametrize("cards", ["cpu:1", "cpu:2x100MiB"])
def test_every_step_is_measured_and_memory_stays_within_the_plan(cards: str) -> None:
    requests = parse_cards(cards)
    record = rehearse_small.rehearse_small(requests, resolve_cards(requests, lambda kind, index: GIB))
    steps, memory = record["steps"], record["memory"]
    assert isinstance(steps, dict)
    assert isinstance(memory, dict)
    assert all(math.isfinite(value) and value > 0 for value in steps.values())
    assert {name.partition("_")[0] for name in steps} == {"decode", "verify", "prefill"}
    assert 0 < sum(memory["measured"].values()) <= sum(memory["planned"].values())
    assert record["card"] == "CPU"


def test_cards_too_small_for_it_are_refused() -> None:
    requests = parse_cards("cpu:1x8MiB")
    with pytest.raises(BudgetError, match="needed on cpu:0") as refused:
        rehearse_small.rehearse_small(requests, resolve_cards(requests, lambda kind, index: MIB))
    assert refused.value.found
    assert refused.value.remedy
