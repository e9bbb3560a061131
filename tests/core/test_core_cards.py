"""``--cards``: every form, every mistake, and budgets from free memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.cards import CardRequest, format_cards, parse_cards, parse_size, resolve_cards
from tandem.core.errors import SettingsError
from tandem.core.plan import GIB, MIB, Card


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("cpu", [("cpu", 0, None)]),
        ("cpu:3", [("cpu", 0, None), ("cpu", 1, None), ("cpu", 2, None)]),
        ("cpu:2x600MiB", [("cpu", 0, 600 * MIB), ("cpu", 1, 600 * MIB)]),
        ("cuda:1", [("cuda", 0, None)]),
        ("cuda:0=60GiB,cuda:1=62GiB", [("cuda", 0, 60 * GIB), ("cuda", 1, 62 * GIB)]),
        ("cuda:3=1.5GiB", [("cuda", 3, 1536 * MIB)]),
        ("cpu:1x1GiB, cpu:1", [("cpu", 0, GIB), ("cpu", 1, None)]),
        ("cuda:2,cpu:1x4GB", [("cuda", 0, None), ("cuda", 1, None), ("cpu", 0, 4 * 10**9)]),
    ],
)
def test_every_form(text: str, cards: list[tuple[str, int, int | None]]) -> None:
    assert [(card.kind, card.index, card.budget_bytes) for card in parse_cards(text)] == cards


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "''"), ("gpu:1", "'gpu:1'"), ("cpu:0", "'cpu:0'"), ("cpu:-1", "'cpu:-1'"), ("cpu:2,", "''"),
        ("cpu:17", "'cpu:17'"), ("cpu:2x", "'cpu:2x'"), ("cpu:2x600", "'600'"), ("cpu:2xMiB", "'MiB'"),
        ("cpu:2x0MiB", "0MiB"), ("cpu:1=", "'cpu:1='"), ("cuda:0=60GiB,cuda:0=1GiB", "cuda:0 twice"),
        ("cuda:16,cpu:1", "17 in"), ("cpu:2x1e3GiB", "'1e3GiB'"), ("cpu:2x9XiB", "'9XiB'"),
        ("2x64GiB", "'2x64GiB'"),
    ],
)  # fmt: skip
def test_every_mistake_is_one_line_that_quotes_it(text: str, found: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_cards(text)
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, derandomize=True)
@given(text=st.text("cpuda:0123x=GiBM, .", max_size=24))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cards = parse_cards(text)
    except SettingsError:
        return
    assert len({card.name for card in cards}) == len(cards) >= 1


@settings(max_examples=50, derandomize=True)
@given(sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=8))
def test_budgets_survive_printing(sizes: list[int]) -> None:
    cards = tuple(CardRequest("cuda", index, size * MIB) for index, size in enumerate(sizes))
    assert parse_cards(format_cards(cards)) == cards


def test_sizes() -> None:
    assert [parse_size(text) for text in ("1KiB", "2 mib", "0.5GiB", "1TB", "7B")] == [
        1024, 2 * MIB, GIB // 2, 10**12, 7,
    ]  # fmt: skip


def test_cpu_cards_share_the_free_memory_and_cuda_cards_take_their_own() -> None:
    free = {("cpu", 0): 1000, ("cuda", 0): 70, ("cuda", 1): 80}
    cards = resolve_cards(parse_cards("cuda:2,cpu:1x200B,cpu:2"), lambda kind, index: free[kind, index])
    assert cards == (
        Card("cuda", 0, 70),
        Card("cuda", 1, 80),
        Card("cpu", 0, 200),
        Card("cpu", 1, 300),
        Card("cpu", 2, 300),
    )


def test_nothing_is_measured_when_all_budgets_are_given() -> None:
    def unavailable(kind: str, index: int) -> int:
        raise AssertionError("measured")

    assert resolve_cards(parse_cards("cpu:2x10MiB"), unavailable)[1].budget_bytes == 10 * MIB


def test_more_promised_than_free_leaves_no_share() -> None:
    cards = resolve_cards(parse_cards("cpu:1x2000B,cpu:1"), lambda kind, index: 1000)
    assert cards[1].budget_bytes == 0
