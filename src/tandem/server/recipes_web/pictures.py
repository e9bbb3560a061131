"""Server-drawn SVG: a planner bar for each card, and the scatter of one workload class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from tandem.core.plan import GIB, format_bytes
from tandem.recipes.compare import Point
from tandem.recipes.fit import CardFit, FitReport

_WIDTH, _ROW, _BAR, _LEFT, _RIGHT = 640, 46, 18, 64, 96
_SHADES = 7


def fit_bars(report: FitReport) -> Markup:
    """One bar a card: its parts, the line of what may be used, a whisker from the low to the high figure."""
    if not report.cards:
        return Markup("")
    largest = max(max(card.high_bytes, card.usable_bytes) for card in report.cards)
    names = list(dict.fromkeys(term.name for card in report.cards for term in card.terms))
    height = _ROW * len(report.cards) + 4
    parts = [_card_bar(card, index, largest, names) for index, card in enumerate(report.cards)]
    told = "; ".join(
        f"{card.name}: {format_bytes(card.expected_bytes)} of {format_bytes(card.usable_bytes)}"
        for card in report.cards
    )
    legend = Markup("").join(
        Markup('<li><span class="swatch s{}"></span>{}</li>').format(index % _SHADES, name.replace("_", " "))
        for index, name in enumerate(names)
    )
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg><ul class="legend">{}</ul>'
    ).format(_WIDTH, height, told, Markup("").join(parts), legend)


def _card_bar(card: CardFit, index: int, largest: int, names: list[str]) -> Markup:
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    top = index * _ROW + 14
    middle = top + _BAR / 2
    pieces = [
        Markup('<text class="name" x="0" y="{}">{}</text>').format(middle + 4, card.name),
        Markup('<rect class="room" x="{}" y="{}" width="{}" height="{}"/>').format(
            _LEFT, top, _px(card.usable_bytes * scale), _BAR
        ),
    ]
    x = float(_LEFT)
    for term in card.terms:
        width = term.bytes * scale
        title = f"{term.name.replace('_', ' ')}: {format_bytes(term.bytes)} ({term.quality})"
        pieces.append(
            Markup(
                '<rect class="s{} {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
            ).format(
                names.index(term.name) % _SHADES, term.quality, _px(x), top, _px(max(width, 0.5)), _BAR, title
            )
        )
        x += width
    limit = _LEFT + card.usable_bytes * scale
    low, high = _LEFT + card.low_bytes * scale, _LEFT + card.high_bytes * scale
    over = card.expected_bytes > card.usable_bytes
    left = card.usable_bytes - card.expected_bytes
    said = f"{format_bytes(abs(left))} {'short' if over else 'left'}"
    pieces.append(
        Markup(
            '<path class="whisker" d="M{0} {2}H{1}M{0} {3}v8M{1} {3}v8"/>'
            '<path class="limit" d="M{4} {5}v{6}"/>'
            '<text class="left {7}" x="{8}" y="{9}">{10}</text>'
        ).format(
            _px(low), _px(high), top - 5, top - 9, _px(limit), top - 4, _BAR + 8, "over" if over else "",
            _WIDTH - _RIGHT + 8, middle + 4, said,
        )
    )  # fmt: skip
    return Markup("").join(pieces)


def scatter(points: Sequence[Point], root: str) -> Markup:
    """Decode speed over the number of cards; hollow marks deviate from their recipe's configuration."""
    width, height, left, bottom, top, right = 760, 380, 64, 46, 18, 24
    most_cards = max(int(max(point.x for point in points)), 2)
    ceiling = _ceiling(max(point.high for point in points))

    def x_of(cards: float) -> float:
        return left + (cards - 0.5) / most_cards * (width - left - right)

    def y_of(rate: float) -> float:
        return height - bottom - rate / ceiling * (height - bottom - top)

    pieces = []
    for step in range(6):
        rate = ceiling * step / 5
        pieces.append(
            Markup('<path class="grid" d="M{} {}H{}"/><text class="tick y" x="{}" y="{}">{}</text>').format(
                left, _px(y_of(rate)), width - right, left - 8, _px(y_of(rate) + 4), f"{rate:g}"
            )
        )
    for cards in range(1, most_cards + 1):
        pieces.append(
            Markup('<text class="tick x" x="{}" y="{}">{}</text>').format(
                _px(x_of(cards)), height - bottom + 20, cards
            )
        )
    pieces.append(Markup('<text class="axis x" x="{}" y="{}">cards</text>').format(width - right, height - 8))
    pieces.append(Markup('<text class="axis y" x="{}" y="{}">tok/s</text>').format(left - 8, top - 4))
    for point in points:
        pieces.append(_mark(point, x_of(point.x), y_of(point.low), y_of(point.high), root))
    label = (
        f"{len(points)} points, from {min(p.low for p in points):g} to {max(p.high for p in points):g} tok/s"
    )
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, label, Markup("").join(pieces)
    )


def _mark(point: Point, x: float, low: float, high: float, root: str) -> Markup:
    title = f"{point.title}: {point.text}" + (" (changed configuration)" if point.deviating else "")
    middle = (low + high) / 2
    return Markup(
        '<a href="{}/{}"><title>{}</title><path class="range" d="M{} {}V{}"/>'
        '<circle class="{}" cx="{}" cy="{}" r="7"/><text class="mark" x="{}" y="{}">{}</text></a>'
    ).format(
        root, point.recipe_id, title, _px(x), _px(low), _px(high), "hollow" if point.deviating else "solid",
        _px(x), _px(middle), _px(x + 13), _px(middle + 4), point.text,
    )  # fmt: skip


def _ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten that holds the value."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value)


def _px(value: float) -> str:
    return f"{value:.1f}"


def term_table(report: FitReport) -> list[tuple[str, list[str]]]:
    """(part, one cell a card), with the sum, what may be used and what is left as the last rows."""
    names = list(dict.fromkeys(term.name for card in report.cards for term in card.terms))
    rows = []
    for name in names:
        cells = []
        for card in report.cards:
            held = [term for term in card.terms if term.name == name]
            about = any(term.quality != "exact" for term in held)
            size = sum(term.bytes for term in held)
            cells.append(("≈ " if about and held else "") + f"{size / GIB:.3f} GiB" if held else "–")
        rows.append((str(escape(name.replace("_", " "))), cells))
    rows.append(("expected", [f"{card.expected_bytes / GIB:.3f} GiB" for card in report.cards]))
    between = [f"{card.low_bytes / GIB:.2f} to {card.high_bytes / GIB:.2f} GiB" for card in report.cards]
    rows.append(("low to high", between))
    rows.append(("may be used", [f"{card.usable_bytes / GIB:.3f} GiB" for card in report.cards]))
    return rows
