"""The small rehearsal on the processor: every step is there, every term, and what cannot be is said."""

from __future__ import annotations

import math

import pytest

from tandem.api.rehearsal_plan import Told, nobody
from tandem.api.rehearse_engine import Sizes, rehearse_engine
from tandem.core.cards import parse_cards, resolve_cards
from tandem.core.errors import BudgetError, SettingsError
from tandem.core.plan import GIB, MIB
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS

SHORTER = Sizes(context=512, chunk=64, long=64, short=8, repeats=1)


def rehearse(cards: str, free_bytes: int, told: Told = nobody) -> dict[str, object]:
    requests = parse_cards(cards)
    resolved = resolve_cards(requests, lambda kind, index: free_bytes)
    return rehearse_engine(SMALL, SMALL_BITS, SHORTER, requests, resolved, told=told)


@pytest.mark.slow
@pytest.mark.parametrize("cards", ["cpu:1", "cpu:2x100MiB"])
def test_every_step_is_measured_and_memory_stays_within_the_plan(cards: str) -> None:
    heard: dict[str, float] = {}
    record = rehearse(cards, GIB, heard.__setitem__)
    steps, memory = record["steps"], record["memory"]
    assert isinstance(steps, dict)
    assert isinstance(memory, dict)
    assert heard == steps
    assert all(math.isfinite(value) and value > 0 for value in steps.values())
    several = cards != "cpu:1"
    kinds = {"decode", "verify", "prefill", *(["transfer"] if several else [])}
    assert {name.partition("_")[0] for name in steps} == kinds
    assert ("decode_8x8_in_2_batches_ms" in steps) == several
    assert 0 < sum(memory["measured"].values()) <= sum(memory["planned"].values())
    for terms in ("planned", "measured") if several else ():
        of_cards = [sum(card[terms].values()) for card in memory["by_card"].values()]
        assert len(of_cards) == 2
        assert sum(of_cards) == sum(memory[terms].values())
    assert record["card"] == "CPU"


def test_cards_too_small_for_it_are_refused() -> None:
    with pytest.raises(BudgetError, match="needed on cpu:0") as refused:
        rehearse("cpu:1x8MiB", MIB)
    assert refused.value.found
    assert refused.value.remedy


def test_caches_too_small_for_its_sequences_are_refused() -> None:
    requests = parse_cards("cpu:1")
    cards = resolve_cards(requests, lambda kind, index: GIB)
    with pytest.raises(SettingsError, match="4,095 tokens; try: --context 4096 or more"):
        rehearse_engine(SMALL, SMALL_BITS, SHORTER, requests, cards, pool_tokens=4095)
