"""Refuses what a card has no bytes for: the plan before anything is allocated, the allocations after it."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.core.errors import BudgetError
from tandem.core.plan import MemoryTerm, Plan, format_bytes


def check_plan(plan: Plan) -> None:
    """Raise BudgetError for the card whose planned bytes exceed its budget by most."""
    shortfalls = [
        (plan.card_bytes(card.name) - card.budget_bytes, card) for card in {s.card for s in plan.stages}
    ]
    excess, card = max(shortfalls, key=lambda pair: (pair[0], pair[1].name))
    if excess <= 0:
        return
    terms = [term for term in plan.terms if term.card == card.name]
    raise BudgetError(
        f"The plan needs {format_bytes(plan.card_bytes(card.name))} on {card.name}, "
        f"{format_bytes(excess)} more than its budget of {format_bytes(card.budget_bytes)}",
        found=_listed(terms),
        remedy="a shorter context, fewer slots, more cards or a larger budget",
    )


def check_allocated(plan: Plan, allocated: Iterable[MemoryTerm]) -> None:
    """Raise BudgetError if more was allocated on a card than planned there."""
    terms = tuple(allocated)
    for card in sorted({stage.card.name for stage in plan.stages}):
        here = [term for term in terms if term.card == card]
        used, planned = sum(term.bytes for term in here), plan.card_bytes(card)
        if used > planned:
            raise BudgetError(
                f"{card} holds {format_bytes(used)} where {format_bytes(planned)} were planned",
                found=_listed(here),
                remedy="report this: the planner's account of the model is wrong",
            )


def _listed(terms: list[MemoryTerm]) -> str:
    ordered = sorted(terms, key=lambda term: -term.bytes)
    return ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in ordered)
