"""Reading ``--cards``: which devices, and how many bytes of each.

::

    cpu:2                          two virtual cards, what the machine has free shared between them
    cpu:2x600MiB                   two virtual cards of 600 MiB each
    cuda:2                         the first two CUDA cards, all that is free on each
    cuda:0=60GiB,cuda:1=62GiB      these cards by number, with budgets
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from tandem.core.errors import SettingsError
from tandem.core.plan import GIB, KIB, MIB, Card

CardKind = Literal["cpu", "cuda"]
Capability = tuple[int, int]
"""Of a CUDA card: what its architecture can compute. Hopper's is (9, 0)."""

_COUNTED = re.compile(r"(?P<kind>cpu|cuda)(?::(?P<count>\d+))?(?:x(?P<size>[^,=]+))?")
_NUMBERED = re.compile(r"(?P<kind>cpu|cuda):(?P<index>\d+)=(?P<size>[^,=]+)")
_SIZE = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,9})?)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_UNITS = {
    "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_MAX_CARDS = 16
_CPU_SHARE = 0.8
"""Of the machine's free memory: the rest is the operating system's and this process's own."""


@dataclass(frozen=True, slots=True)
class CardRequest:
    """One card as asked for; ``budget_bytes`` None = as much as is free."""

    kind: CardKind
    index: int
    budget_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


def parse_size(text: str) -> int:
    """``600MiB``, ``1.5GiB``, ``60GB``, ``4096B`` in bytes. Raises SettingsError, also without a unit."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise SettingsError(
            "A size is a number with a unit", found=repr(text), remedy="for example 600MiB, 1.5GiB or 60GB"
        )
    return int(float(match["number"]) * unit)


def parse_cards(text: str) -> tuple[CardRequest, ...]:
    """Read the value of ``--cards``. Raises SettingsError naming the part at fault."""
    cards: list[CardRequest] = []
    for part in text.replace(" ", "").split(","):
        cards += _parse_part(part, text, cards)
    names = [card.name for card in cards]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise SettingsError(f"--cards names {twice} twice", found=text, remedy="name every card once")
    if len(cards) > _MAX_CARDS:
        raise SettingsError(f"At most {_MAX_CARDS} cards are served", found=f"{len(cards)} in {text}")
    return tuple(cards)


def resolve_cards(
    requests: Sequence[CardRequest], free_bytes: Callable[[CardKind, int], int]
) -> tuple[Card, ...]:
    """Give every card a budget. ``free_bytes`` measures one CUDA card, or the machine's memory for ``cpu``.

    CPU cards without a budget share what is left of 80 % of the free memory in equal parts.
    """
    open_cpu = [card for card in requests if card.kind == "cpu" and card.budget_bytes is None]
    share = 0
    if open_cpu:
        taken = sum(card.budget_bytes or 0 for card in requests if card.kind == "cpu")
        share = max(int(free_bytes("cpu", 0) * _CPU_SHARE) - taken, 0) // len(open_cpu)
    return tuple(Card(card.kind, card.index, _budget(card, share, free_bytes)) for card in requests)


def format_cards(requests: Sequence[CardRequest]) -> str:
    """The canonical spelling, one part a card; ``parse_cards`` reads those with budgets back."""
    parts = []
    for card in requests:
        budget = card.budget_bytes
        parts.append(f"{card.name} (free memory)" if budget is None else f"{card.name}={_exact_size(budget)}")
    return ",".join(parts)


def _exact_size(count_bytes: int) -> str:
    unit, size = next(((u, s) for u, s in (("GiB", GIB), ("MiB", MIB)) if count_bytes % s == 0), ("B", 1))
    return f"{count_bytes // size}{unit}"


def _budget(card: CardRequest, cpu_share: int, free_bytes: Callable[[CardKind, int], int]) -> int:
    if card.budget_bytes is not None:
        return card.budget_bytes
    return cpu_share if card.kind == "cpu" else free_bytes("cuda", card.index)


def _parse_part(part: str, whole: str, before: Sequence[CardRequest]) -> list[CardRequest]:
    numbered = _NUMBERED.fullmatch(part)
    if numbered:
        kind = cast(CardKind, numbered["kind"])
        return [CardRequest(kind, int(numbered["index"]), _budget_size(numbered["size"]))]
    counted = _COUNTED.fullmatch(part)
    count = int(counted["count"] or 1) if counted else 0
    if counted is None or not 1 <= count <= _MAX_CARDS:
        raise SettingsError(
            "--cards cannot be read",
            found=f"{part!r} in {whole!r}",
            remedy="cpu:2, cpu:2x600MiB, cuda:2 or cuda:0=60GiB,cuda:1=62GiB",
        )
    kind = cast(CardKind, counted["kind"])
    budget = _budget_size(counted["size"]) if counted["size"] else None
    first = 1 + max((card.index for card in before if card.kind == kind), default=-1)
    return [CardRequest(kind, first + offset, budget) for offset in range(count)]


def _budget_size(text: str) -> int:
    size = parse_size(text)
    if size <= 0:
        raise SettingsError(
            "A card's budget must be above zero", found=text, remedy="for example cpu:2x600MiB"
        )
    return size
