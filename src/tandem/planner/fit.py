"""Does it fit, how far does the context reach, and what would help: the answer before any download.

A plan's terms are exact, estimated or measured; each carries its doubt, so a card has a low, an expected
and a high figure. *fits* only if the high figure does; *marginal* if only the expected one does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from tandem.core.errors import SettingsError
from tandem.core.plan import (
    EXIT_CODES,
    Card,
    MemoryTerm,
    ModelFootprint,
    Plan,
    Verdict,
    format_bytes,
)
from tandem.planner.place import PlanRequest, best_effort_plan, doubt_bytes, high_bytes, max_context_tokens


@dataclass(frozen=True, slots=True)
class CardFit:
    """One card's figures, bytes."""

    card: str
    budget_bytes: int
    low_bytes: int
    expected_bytes: int
    high_bytes: int
    layers: tuple[int, int]
    terms: tuple[MemoryTerm, ...]

    @property
    def left_bytes(self) -> int:
        """Room by the expected figure; negative when short."""
        return self.budget_bytes - self.expected_bytes


@dataclass(frozen=True, slots=True)
class Lever:
    """One change and the context it would reach."""

    change: str
    context_tokens: int


@dataclass(frozen=True, slots=True)
class FitReport:
    verdict: Verdict
    context_tokens: int
    """The context asked for."""
    max_context_tokens: int
    """The longest that fits by the expected figures, 0 if none."""
    limiting_card: str
    cards: tuple[CardFit, ...]
    levers: tuple[Lever, ...]
    embedding_on_host: bool = False

    @property
    def exit_code(self) -> int:
        """0 fits, 3 marginal, 4 no, 5 unknown."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready, all sizes in bytes."""
        return asdict(self)


def card_fit(plan: Plan, index: int, budget_bytes: int) -> CardFit:
    """The three figures of one stage's card."""
    stage = plan.stages[index]
    name = stage.card.name
    terms = tuple(term for term in plan.terms if term.card == name)
    expected = plan.card_bytes(name)
    return CardFit(
        card=name,
        budget_bytes=budget_bytes,
        low_bytes=round(expected - doubt_bytes(plan, name)),
        expected_bytes=expected,
        high_bytes=high_bytes(plan, name),
        layers=(stage.first_layer, stage.end_layer),
        terms=terms,
    )


def fit(
    footprint: ModelFootprint,
    cards: tuple[Card, ...],
    request: PlanRequest,
    alternatives: tuple[tuple[str, ModelFootprint, PlanRequest], ...] = (),
) -> FitReport:
    """Judge one request; ``alternatives`` are (what changes, footprint, request) to offer as levers.

    Raises SettingsError for requests that make no sense (a split that does not match, too many cards).
    """
    context = request.context_tokens or footprint.native_context_tokens
    plan = best_effort_plan(footprint, cards, request, context)
    fits = tuple(card_fit(plan, i, card.budget_bytes) for i, card in enumerate(cards))
    if all(card.high_bytes <= card.budget_bytes for card in fits):
        verdict: Verdict = "fits"
    elif all(card.expected_bytes <= card.budget_bytes for card in fits):
        verdict = "marginal"
    else:
        verdict = "no"
    longest = max_context_tokens(footprint, cards, replace(request, pool_tokens=None))
    levers = () if verdict == "fits" else _levers(cards, longest, alternatives)
    return FitReport(
        verdict=verdict,
        context_tokens=context,
        max_context_tokens=longest,
        limiting_card=min(fits, key=lambda card: card.left_bytes).card,
        cards=fits,
        levers=levers,
        embedding_on_host=plan.stages[0].embedding_on_host,
    )


def _levers(
    cards: tuple[Card, ...], longest: int, alternatives: tuple[tuple[str, ModelFootprint, PlanRequest], ...]
) -> tuple[Lever, ...]:
    """What reaches further than now, cheapest (as ordered by the caller) first."""
    levers = [Lever(f"--context {longest}", longest)] if longest else []
    for change, footprint, request in alternatives:
        reached = max_context_tokens(footprint, cards, replace(request, pool_tokens=None))
        if reached > longest:
            levers.append(Lever(change, reached))
    return tuple(levers)


def explain(report: FitReport) -> list[str]:
    """The report in sentences, one a line."""
    lines = []
    for card in report.cards:
        parts = ", ".join(f"{t.name} {format_bytes(t.bytes)} ({t.quality})" for t in card.terms)
        lines.append(
            f"{card.card} holds layers {card.layers[0]} to {card.layers[1] - 1}: {parts}; together "
            f"{format_bytes(card.expected_bytes)} of {format_bytes(card.budget_bytes)} "
            f"(between {format_bytes(card.low_bytes)} and {format_bytes(card.high_bytes)})."
        )
    word = {
        "fits": "It fits, by the high figures too",
        "marginal": "It fits by the expected figures, but not if every estimate is low",
        "no": "It does not fit",
        "unknown": "It cannot be said",
    }[report.verdict]
    tightest = f"; {report.limiting_card} is the tightest card" if report.cards else ""
    lines.append(f"{word}{tightest}.")
    if report.max_context_tokens:
        lines.append(f"The longest context is {report.max_context_tokens:,} tokens.")
    lines.extend(f"{lever.change} would reach {lever.context_tokens:,} tokens." for lever in report.levers)
    return lines


def parse_split(text: str) -> tuple[int, ...]:
    """Layers per card, ``24,21``. Raises SettingsError if these are no numbers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(
            f"--split {text}", found="not numbers", remedy="layers per card, as 24,21"
        ) from None
