"""Server-drawn SVG: a planner bar for each card, and the scatter of one workload class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from tandem.core.plan import GIB, format_bytes
from tandem.recipes.compare import Point
from tandem.recipes.fit import CardFit, FitReport

_WIDTH, _BAR_HEIGHT, _BAND_HEIGHT = 1000, 22, 5
_SHADES = 9


def fit_bars(report: FitReport) -> Markup:
    """One bar a card: its parts, a line at what may be used, below it the band from low to high."""
    if not report.cards:
        return Markup("")
    largest = max(max(card.high_bytes, card.usable_bytes) for card in report.cards)
    names = list(dict.fromkeys(term.name for card in report.cards for term in card.terms))
    bars = Markup("").join(_card_bar(card, largest, names) for card in report.cards)
    legend = Markup("").join(
        Markup('<li><span class="swatch s{}"></span>{}</li>').format(index % _SHADES, name.replace("_", " "))
        for index, name in enumerate(names)
    )
    band = Markup('<li><span class="swatch band"></span>low to high figure</li>')
    return Markup('{}<ul class="legend">{}{}</ul>').format(bars, legend, band)


def _card_bar(card: CardFit, largest: int, names: list[str]) -> Markup:
    scale = _WIDTH / largest
    pieces = [
        Markup('<rect class="room" x="0" y="0" width="{}" height="{}"/>').format(
            _px(card.usable_bytes * scale), _BAR_HEIGHT
        )
    ]
    x = 0.0
    for term in card.terms:
        width = term.bytes * scale
        title = f"{term.name.replace('_', ' ')}: {format_bytes(term.bytes)} ({term.quality})"
        pieces.append(
            Markup(
                '<rect class="s{} {}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>'
            ).format(
                names.index(term.name) % _SHADES,
                term.quality,
                _px(x),
                _px(max(width, 0.5)),
                _BAR_HEIGHT,
                title,
            )
        )
        x += width
    low, high = card.low_bytes * scale, card.high_bytes * scale
    limit = min(card.usable_bytes * scale, _WIDTH - 1.5)
    pieces.append(
        Markup(
            '<rect class="band" x="{}" y="{}" width="{}" height="{}"/><path class="limit" d="M{} 0v{}"/>'
        ).format(
            _px(low), _BAR_HEIGHT + 2, _px(max(high - low, 3)), _BAND_HEIGHT, _px(limit), _BAR_HEIGHT + 9
        )
    )
    left = card.usable_bytes - card.expected_bytes
    said = f"{abs(left) / GIB:.2f} GiB {'short' if left < 0 else 'left'}"
    label = f"{card.name}: {format_bytes(card.expected_bytes)} of {format_bytes(card.usable_bytes)}, {said}"
    return Markup(
        '<div class="bar"><span class="name">{}</span><svg viewBox="0 0 {} {}" preserveAspectRatio="none" '
        'role="img" aria-label="{}">{}</svg><span class="left{}">{}</span></div>'
    ).format(
        card.name, _WIDTH, _BAR_HEIGHT + 9, label, Markup("").join(pieces), " over" if left < 0 else "", said
    )  # fmt: skip


def scatter(points: Sequence[Point], root: str) -> Markup:
    """Decode speed over the number of cards; hollow marks deviate from their recipe's configuration."""
    width, height, left, bottom, top, right = 760, 390, 64, 46, 34, 24
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
    pieces.append(Markup('<text class="axis y" x="{}" y="{}">tok/s</text>').format(left - 8, top - 18))
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
