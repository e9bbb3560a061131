"""The standing of a recipe and of its numbers: computed from evidence, never typed.

- *Proven*: everything is pinned, the author saw it start, and someone independent served it on the same card
  model and count, with a named profile, at this revision, on or after the revision's date.
- *Reported*: anything else that has a source.
- *Disputed*, *Broken*, *Stale* lie over either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tandem.recipes.measurement import Confirmation, Measurement
from tandem.recipes.schema import Recipe
from tandem.recipes.values import Stated, date_span

STALE_DAYS = 180
REPRODUCED_WITHIN = 0.10

Status = Literal["proven", "reported"]
Overlay = Literal["disputed", "broken", "stale"]
NumberStanding = Literal["reproduced", "single", "deviating"]


@dataclass(frozen=True, slots=True)
class Standing:
    """``missing`` says what keeps a reported recipe from being proven; ``because`` backs each overlay."""

    status: Status
    overlays: tuple[Overlay, ...]
    missing: tuple[str, ...]
    because: tuple[str, ...]
    completeness_percent: int


def engine_majors(recipes: Iterable[Recipe]) -> dict[str, int]:
    """The newest major version of each engine that any recipe uses."""
    newest: dict[str, int] = {}
    for recipe in recipes:
        name, major = recipe.engine.name.value, _major(recipe)
        if name is not None and major is not None:
            newest[name] = max(major, newest.get(name, 0))
    return newest


def standing_of(recipe: Recipe, today: int, newest_majors: dict[str, int]) -> Standing:
    """``today`` is a proleptic ordinal day, as everywhere in this room."""
    missing = _missing_pins(recipe)
    if not _author_saw_it_start(recipe):
        missing.append("no evidence that its author saw it start")
    proofs = [_flaw(recipe, item) for item in recipe.confirmations if item.independent]
    if not proofs:
        missing.append("no independent confirmation")
    elif all(proofs):
        missing += [flaw for flaw in proofs if flaw]
    overlays, because = _overlays(recipe, today, newest_majors)
    return Standing(
        status="reported" if missing else "proven",
        overlays=overlays,
        missing=tuple(dict.fromkeys(missing)),
        because=because,
        completeness_percent=completeness_percent(recipe),
    )


def completeness_percent(recipe: Recipe) -> int:
    """How much of what a reader needs to repeat the recipe is stated (or cannot apply)."""
    quant, engine, hardware, topology = recipe.quant, recipe.engine, recipe.hardware, recipe.topology
    stated = [
        _known(field)
        for field in (
            quant.scheme, quant.bpw, quant.repo, quant.revision, engine.name, engine.version,
            hardware.card, hardware.count, hardware.nodes, hardware.exposed_gib, hardware.peer_copies,
            hardware.driver, hardware.unlock, hardware.power_limit_w, topology.layout, topology.degree,
            recipe.profiles[0].max_request_tokens, recipe.profiles[0].kv,
        )
    ]  # fmt: skip
    stated += [
        _engine_pinned(recipe),
        bool(recipe.steps),
        bool(recipe.measurements),
        bool(recipe.confirmations),
    ]
    return round(100 * sum(stated) / len(stated))


def number_standing(recipe: Recipe, measurement: Measurement) -> NumberStanding:
    """*reproduced*: someone else got within 10 % in the same configuration and workload, as written."""
    if measurement.deviations:
        return "deviating"
    if any(_agrees(measurement, other) for other in recipe.measurements):
        return "reproduced"
    return "single"


def _agrees(one: Measurement, other: Measurement) -> bool:
    if one.span is None or other.span is None or None in (one.by, other.by) or one.by == other.by:
        return False
    same = (one.metric, one.unit, one.profile, one.scope, one.stat, one.workload, one.card_index) == (
        other.metric, other.unit, other.profile, other.scope, other.stat, other.workload, other.card_index,
    )  # fmt: skip
    middle, its = sum(one.span) / 2, sum(other.span) / 2
    return same and not other.deviations and abs(its - middle) <= REPRODUCED_WITHIN * abs(middle)


def _known(field: Stated[str | int | float]) -> bool:
    return field.value is not None or field.basis == "not_applicable"


def _engine_pinned(recipe: Recipe) -> bool:
    return bool(recipe.engine.commit.value or recipe.engine.digest)


def _missing_pins(recipe: Recipe) -> list[str]:
    missing = []
    if recipe.quant.revision.value is None:
        missing.append("the weights' revision is not pinned")
    if not _engine_pinned(recipe):
        missing.append("the engine's commit or image digest is not pinned")
    if not recipe.steps:
        missing.append("no steps")
    return missing


def _author_saw_it_start(recipe: Recipe) -> bool:
    if any(test.date.value is not None and test.by.value is not None for test in recipe.tested):
        return True
    return any(
        not item.independent and item.outcome in ("boots", "serves", "number")
        for item in recipe.confirmations
    )


def _flaw(recipe: Recipe, item: Confirmation) -> str | None:
    """Why an independent confirmation does not prove the recipe; None if it does."""
    who = f"@{item.by}'s confirmation"
    profiles = {profile.name for profile in recipe.profiles}
    if item.outcome not in ("serves", "number"):
        said = "does not say what it showed" if item.outcome is None else f"says only '{item.outcome}'"
        return f"{who} {said}"
    if item.profile not in profiles:
        return f"{who} names no profile"
    card = recipe.hardware.card
    if _known(card) and item.machine.card != card.value:
        return f"{who} is not for {card.value}" if item.machine.card else f"{who} does not name its cards"
    count = recipe.hardware.count
    if count.value is not None and item.machine.cards != count.value:
        return f"{who} is not for {count.value} cards"
    if item.revision != recipe.revision:
        return f"{who} is not for revision {recipe.revision}"
    if recipe.revised is None:
        return f"revision {recipe.revision} is not dated"
    if date_span(item.date)[1] <= date_span(recipe.revised)[0]:
        return f"{who} is older than the revision"
    return None


def _overlays(
    recipe: Recipe, today: int, newest_majors: dict[str, int]
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    found: list[tuple[Overlay, str]] = []
    for item in recipe.confirmations:
        if item.outcome == "disputes" and item.resolved is None:
            found.append(("disputed", f"@{item.by} objects ({item.date}) and nothing has settled it"))
    if recipe.confirmations:
        latest = max(recipe.confirmations, key=lambda item: date_span(item.date)[0])
        if latest.outcome == "fails" and latest.resolved is None:
            found.append(
                ("broken", f"the latest confirmation, @{latest.by}'s of {latest.date}, says it fails")
            )
    days = [date_span(item.date)[1] for item in recipe.confirmations]
    days += [date_span(test.date.value)[1] for test in recipe.tested if test.date.value is not None]
    days += [date_span(item.when)[1] for item in recipe.measurements if item.when is not None]
    if days and today - max(days) > STALE_DAYS:
        found.append(("stale", f"nothing newer than {STALE_DAYS} days"))
    major, newest = _major(recipe), newest_majors.get(recipe.engine.name.value or "")
    if major is not None and newest is not None and newest > major:
        found.append(("stale", f"the engine has moved on to major version {newest}"))
    return tuple(dict.fromkeys(name for name, _ in found)), tuple(reason for _, reason in found)


def _major(recipe: Recipe) -> int | None:
    match = re.match(r"v?(\d{1,4})\.", recipe.engine.version.value or "")
    return None if match is None else int(match.group(1))
