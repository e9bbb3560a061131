"""Which values and ranges of a facet are worth listing, given how many records hold each."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tandem.recipes.columns import Floats, Ints
from tandem.recipes.terms import number_text, range_text

LISTED_SINGLY = 5
QUANTILES = 5
_DAYS_LISTED_SINGLY = 31
_MONTHS_LISTED = 24


def top_codes(counts: Ints, top: int) -> list[int]:
    """Positions of the ``top`` largest counts above zero, largest first.

    Values that tie with the last one shown are kept with it, as long as that does not double the list.
    """
    positive = int(np.count_nonzero(counts))
    order = np.argsort(-counts, kind="stable")[:positive]
    if positive <= top:
        return [int(code) for code in order]
    tied = int(np.count_nonzero(counts >= counts[order[top - 1]]))
    return [int(code) for code in order[: tied if tied <= 2 * top else top]]


def number_ranges(spans: tuple[Floats, Floats], counts: Ints) -> list[str]:
    """Terms that cover the values: singly while they are few, else quantiles cut at friendly numbers.

    ``spans`` are the values' lows and highs, ascending; ``counts`` is how many records hold each. Ranges are
    half-open, the last is closed.
    """
    held = np.flatnonzero(counts)
    lows, highs = spans[0][held], spans[1][held]
    if len(held) <= LISTED_SINGLY:
        return [_single(float(low), float(high)) for low, high in zip(lows, highs, strict=True)]
    highest = float(highs.max())
    share = np.cumsum(counts[held]) / counts[held].sum()
    cuts = [float(lows[np.searchsorted(share, step / QUANTILES)]) for step in range(1, QUANTILES)]
    start = friendly(float(lows[0]), highest - float(lows[0]), down=True)
    edges = [start]
    for cut in cuts:
        edge = friendly(cut, highest - float(lows[0]), down=False)
        if edges[-1] < edge < highest:
            edges.append(edge)
    texts = [number_text(edge) for edge in edges]
    ranges = [range_text(low, high, False) for low, high in pairwise(texts)]
    return [*ranges, range_text(texts[-1], number_text(highest), True)]


def _single(low: float, high: float) -> str:
    return number_text(low) if low == high else range_text(number_text(low), number_text(high), True)


def friendly(value: float, span: float, *, down: bool) -> float:
    """``value`` on a grid of 1, 2 or 5 times a power of ten, about a twentieth of ``span`` wide."""
    raw = span / 20
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= raw), power * 10)
    steps = math.floor(value / step) if down else round(value / step)
    return float(f"{steps * step:.9g}")


def date_ranges(values: Sequence[str], counts: Ints) -> list[str]:
    """Days, months or years, whichever lists the span in few lines; coarser dates keep their precision."""
    held = [values[int(index)] for index in np.flatnonzero(counts)]
    if not held:
        return []
    days = [dt.date.fromisoformat((value + "-01-01")[:10]) for value in held]
    months = (max(days).year - min(days).year) * 12 + max(days).month - min(days).month
    if (max(days) - min(days)).days <= _DAYS_LISTED_SINGLY:
        length = len("2026-10-20")
    else:
        length = len("2026-10") if months <= _MONTHS_LISTED else len("2026")
    return sorted({value[:length] for value in held}, reverse=True)
