"""Cards written as sizes."""

import pytest

from tandem.core.errors import SettingsError
from tandem.core.plan import GIB
from tandem.planner.hardware import parse_hardware


@pytest.mark.parametrize(
    ("text", "gib"),
    [
        ("2x64GiB", [64, 64]),
        ("64GiB", [64]),
        ("64GiB,48GiB", [64, 48]),
        ("2x24GiB, 1x16GiB", [24, 24, 16]),
        ("cuda:0=60GiB,cuda:1=62GiB", [60, 62]),
    ],
)
def test_sizes(text, gib):
    cards = parse_hardware(text)
    assert [card.budget_bytes for card in cards] == [n * GIB for n in gib]
    assert [card.name for card in cards] == [f"cuda:{i}" for i in range(len(gib))]


@pytest.mark.parametrize(
    "text", ["", "x", "0x64GiB", "2x", "2x64", "9x64GiB", "cuda:2", "2x-1GiB", "64 parsecs"]
)
def test_nonsense_is_refused(text):
    with pytest.raises(SettingsError):
        parse_hardware(text)
