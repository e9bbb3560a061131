"""Two recipes side by side, field by field, and one workload class as points for a scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tandem.recipes.facets import LABELS
from tandem.recipes.facts import shown, unit_scale
from tandem.recipes.measurement import Measurement
from tandem.recipes.profiles import default_profile, effective_profile
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import Profile, Recipe
from tandem.recipes.status import Standing, number_standing


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of a comparison. Empty text: not stated."""

    section: str
    label: str
    left: str
    right: str

    @property
    def same(self) -> bool:
        return self.left == self.right


@dataclass(frozen=True, slots=True)
class Side:
    recipe: Recipe
    model: ModelEntry
    standing: Standing


def compare(left: Side, right: Side) -> list[Difference]:
    """Every field that at least one of the two states."""
    lines = [Difference(section, label, read(left), read(right)) for section, label, read in _FIELDS]
    metrics = dict.fromkeys(item.metric for side in (left, right) for item in side.recipe.measurements)
    for metric in metrics:
        lines.append(
            Difference("Numbers", LABELS.get(metric, metric), _numbers(left, metric), _numbers(right, metric))
        )
    return [line for line in lines if line.left or line.right]


def _numbers(side: Side, metric: str) -> str:
    return "\n".join(
        _number(item) for item in side.recipe.measurements if item.metric == metric and item.text()
    )


def _number(item: Measurement) -> str:
    workload = item.workload.label or item.workload.text_class if item.workload is not None else None
    details = [
        workload,
        *item.deviations,
        f"card {item.card_index}" if item.card_index is not None else None,
        item.stat,
    ]
    told = ", ".join(detail for detail in details if detail)
    return item.text() + (f" ({told})" if told else "")


def _default(side: Side) -> Profile:
    return effective_profile(side.recipe, default_profile(side.recipe))


_FIELDS: tuple[tuple[str, str, Callable[[Side], str]], ...] = (
    ("Model", "Model", lambda s: s.model.name),
    ("Model", "Quantization", lambda s: shown("quant", s.recipe.quant.scheme)),
    ("Model", "Bits per weight", lambda s: s.recipe.quant.bpw.text()),
    ("Model", "Weights from", lambda s: s.recipe.quant.repo.text()),
    ("Model", "Revision", lambda s: s.recipe.quant.revision.text()),
    ("Model", "Download", lambda s: s.recipe.quant.download_gb.text("GB")),
    ("Model", "Speculation", lambda s: ", ".join(LABELS.get(d.kind, d.kind) for d in s.recipe.drafters)),
    ("Engine", "Engine", lambda s: shown("engine", s.recipe.engine.name)),
    ("Engine", "Version", lambda s: s.recipe.engine.version.text()),
    ("Engine", "Server", lambda s: s.recipe.engine.server or ""),
    ("Machine", "Card", lambda s: s.recipe.hardware.card.text()),
    ("Machine", "Cards", lambda s: s.recipe.hardware.count.text()),
    ("Machine", "Memory exposed", lambda s: s.recipe.hardware.exposed_gib.text("GiB")),
    ("Machine", "P2P", lambda s: shown("p2p", s.recipe.hardware.peer_copies)),
    ("Machine", "Driver", lambda s: s.recipe.hardware.driver.text()),
    ("Machine", "Unlock", lambda s: s.recipe.hardware.unlock.text()),
    ("Machine", "Power limit", lambda s: s.recipe.hardware.power_limit_w.text("W")),
    (
        "Configuration",
        "Layout",
        lambda s: s.recipe.topology.label or shown("layout", s.recipe.topology.layout),
    ),
    ("Configuration", "Transport", lambda s: s.recipe.topology.transport or ""),
    ("Configuration", "Default profile", lambda s: default_profile(s.recipe).name),
    ("Configuration", "Longest request", lambda s: _default(s).max_request_tokens.text("tokens")),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One decode number of the chosen class. ``x`` is the number of cards."""

    recipe_id: str
    title: str
    x: float
    low: float
    high: float
    text: str
    deviating: bool


def scatter_points(recipes: Iterable[Recipe], text_class: str) -> list[Point]:
    """Decode speed of one stream over the number of cards, for one kind of text only."""
    points = []
    for recipe in recipes:
        for item in recipe.measurements:
            workload = item.workload
            scale = unit_scale(item)
            if item.metric != "decode" or workload is None or workload.text_class != text_class:
                continue
            cards = item.machine.cards if item.machine is not None else None
            cards = cards if cards is not None else recipe.hardware.count.value
            if item.span is None or scale is None or cards is None or item.scope == "aggregate":
                continue
            points.append(
                Point(
                    recipe.id, recipe.title, float(cards), item.span[0] * scale, item.span[1] * scale,
                    item.text(), number_standing(recipe, item) == "deviating",
                )
            )  # fmt: skip
    return points
