"""Does a recipe's profile fit somebody's cards: what is asked, what is answered, and the cards as text.

The arithmetic is not here: a ``FitCalculator`` is handed in. Without one every verdict is *unknown*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from tandem.core.plan import GIB, Quality, Verdict
from tandem.recipes.profiles import effective_profile
from tandem.recipes.query_error import QueryError
from tandem.recipes.register import Geometry
from tandem.recipes.schema import Profile, Recipe

_SIZE = r"[1-9][0-9]{0,3}(?:\.[0-9]{1,4})?"
_UNIT = "(?:[gG](?:[iI][bB])?)?"
_PART = f"(?:(?:1[0-6]|[1-9])[xX])?{_SIZE}{_UNIT}(?::usable={_SIZE}{_UNIT})?"
HARDWARE_PATTERN = f"{_PART}(?:[,+]{_PART}){{0,3}}"
"""What ``parse_hardware`` reads, spaces aside: at most four kinds of cards, at most 16 of each."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Somebody's cards: bytes each has, and bytes Tandem may use of each."""

    card_bytes: tuple[int, ...]
    usable_bytes: tuple[int, ...]

    def text(self) -> str:
        """The canonical form, which ``parse_hardware`` reads back."""
        groups: list[tuple[int, int, int]] = []
        for size, usable in zip(self.card_bytes, self.usable_bytes, strict=True):
            if groups and groups[-1][1:] == (size, usable):
                groups[-1] = (groups[-1][0] + 1, size, usable)
            else:
                groups.append((1, size, usable))
        return ",".join(
            f"{count}x{_gib(size)}gib" + ("" if usable == size else f":usable={_gib(usable)}")
            for count, size, usable in groups
        )


def _gib(count: int) -> str:
    return f"{count / GIB:.6g}"


_GROUP = re.compile(rf"(?:(\d+)x)?({_SIZE})(?:gib|g)?(?::usable=({_SIZE})(?:gib|g)?)?")


def parse_hardware(text: str) -> Hardware:
    """``2x64GiB``, ``2x64GiB:usable=63.4``, ``64GiB,24GiB``. Raises QueryError for anything else."""
    cleaned = text.replace(" ", "")
    if re.fullmatch(HARDWARE_PATTERN, cleaned) is None:
        raise QueryError("hw", f"{text[:80]!r} names no cards", "write them like 2x64gib or 64gib,48gib")
    sizes: list[int] = []
    usables: list[int] = []
    for part in re.split("[,+]", cleaned.lower()):
        match = _GROUP.fullmatch(part)
        assert match is not None
        count, size = int(match[1] or 1), float(match[2])
        usable = float(match[3]) if match[3] is not None else size
        if usable > size:
            raise QueryError("hw", f"{part!r}: more usable than there is")
        sizes += [round(size * GIB)] * count
        usables += [round(usable * GIB)] * count
    return Hardware(tuple(sizes), tuple(usables))


@dataclass(frozen=True, slots=True)
class FitSubject:
    """Everything of a recipe's profile that decides how much memory it takes. None = not stated."""

    model: str
    engine: str | None
    scheme: str | None
    bpw: float | None
    quant_repo: str | None
    quant_revision: str | None
    layout: str | None
    cache_tokens: int | None
    request_tokens: int | None
    kv: str | None
    slots: int | None
    drafter: str | None
    draft_tokens: int | None
    chunk_tokens: int | None
    head_card: int | None
    margin_mib: int | None
    index_keys: str | None


def fit_subject(recipe: Recipe, profile: Profile) -> FitSubject:
    full = effective_profile(recipe, profile)
    return FitSubject(
        model=recipe.model,
        engine=full.engine or recipe.engine.name.value,
        scheme=recipe.quant.scheme.value,
        bpw=recipe.quant.bpw.value,
        quant_repo=recipe.quant.repo.value,
        quant_revision=recipe.quant.revision.value,
        layout=recipe.topology.layout.value,
        cache_tokens=full.cache_tokens.value or full.pool_tokens.value,
        request_tokens=full.max_request_tokens.value,
        kv=full.kv.value,
        slots=full.slots.value,
        drafter=full.drafter,
        draft_tokens=full.draft_tokens,
        chunk_tokens=full.chunk_tokens,
        head_card=full.head_card,
        margin_mib=full.margin_mib,
        index_keys=full.index_keys,
    )


@dataclass(frozen=True, slots=True)
class FitTerm:
    """One part of a card's memory."""

    name: str
    bytes: int
    quality: Quality


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card: its terms, and the low, expected and high figures of their sum."""

    name: str
    usable_bytes: int
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    terms: tuple[FitTerm, ...]
    layers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FitReport:
    """``reason`` is one sentence for a reader; ``levers`` are changes that would help, cheapest first."""

    verdict: Verdict
    reason: str
    cards: tuple[CardFit, ...] = ()
    limiting_card: str | None = None
    levers: tuple[str, ...] = ()
    max_context_tokens: int | None = None


class FitCalculator(Protocol):
    """The planner's face towards the catalogue."""

    def fit(self, subject: FitSubject, geometry: Geometry | None, hardware: Hardware) -> FitReport:
        """Judge one profile on somebody's cards; *unknown* for a recipe that cannot be judged."""
        ...


class UnknownFit:
    """The calculator of a catalogue that was given none."""

    def fit(self, subject: FitSubject, geometry: Geometry | None, hardware: Hardware) -> FitReport:
        return FitReport("unknown", "no planner is at hand to say")
