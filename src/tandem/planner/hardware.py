"""Cards that need not be there: ``2x64GiB``, ``64GiB,48GiB``, ``3x24GiB``, for planning before buying."""

from __future__ import annotations

import re

from tandem.core.cards import parse_cards, parse_size, resolve_cards
from tandem.core.errors import SettingsError
from tandem.core.plan import Card

_PART = re.compile(r"(?:(?P<count>\d{1,2})x)?(?P<size>\d.*)")
MAX_CARDS = 8


def parse_hardware(text: str) -> tuple[Card, ...]:
    """Sizes of cards, in order; ``cuda:0=60GiB,…`` as for ``serve --cards`` is understood too.

    Raises SettingsError naming the part at fault.
    """
    cleaned = text.replace(" ", "")
    if cleaned.startswith(("cpu", "cuda")):
        requests = parse_cards(cleaned)
        if any(request.budget_bytes is None for request in requests):
            raise SettingsError(
                f"--cards {text} does not say how large the cards are",
                remedy="--cards 2x64GiB or cuda:0=60GiB",
            )
        return resolve_cards(requests, lambda kind, index: 0)
    sizes: list[int] = []
    for part in cleaned.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise SettingsError(
                "--cards cannot be read", found=f"{part!r} in {text!r}", remedy="2x64GiB or 64GiB,48GiB"
            )
        sizes += [parse_size(match["size"])] * int(match["count"] or 1)
    if not 1 <= len(sizes) <= MAX_CARDS or min(sizes) <= 0:
        raise SettingsError(
            f"1 to {MAX_CARDS} cards above 0 bytes are planned for", found=text, remedy="2x64GiB"
        )
    return tuple(Card("cuda", index, size) for index, size in enumerate(sizes))
