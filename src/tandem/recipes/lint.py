"""What is wrong, or may mislead, in a recipe that can be read. Each finding names file, line and field.

*error*: the recipe contradicts itself or a number cannot be used. *warning*: a reader may be misled.
*note*: a gap worth filling. Transcribed recipes keep their sources' faults: shipped files have warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tandem.core.plan import GIB
from tandem.recipes.facts import headline, unit_scale
from tandem.recipes.files import Loaded, RecipeFile
from tandem.recipes.measurement import METRIC_UNITS, Measurement
from tandem.recipes.profiles import effective_profile
from tandem.recipes.schema import Recipe
from tandem.recipes.values import Stated, date_span
from tandem.recipes.yaml_lines import Path, dotted

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
PAGE_TOKENS = 256
_MOVING = {"main", "master", "latest", "nightly", "head", "dev"}


@dataclass(frozen=True, slots=True)
class Finding:
    file: str
    line: int
    field: str
    level: Level
    rule: str
    message: str

    def text(self) -> str:
        return f"{self.file}:{self.line}: {self.level}: {self.field}: {self.message} [{self.rule}]"


Problem = tuple[Path, Level, str, str]
Rule = Callable[[Recipe], Iterator[Problem]]


def lint(loaded: Loaded, today: int) -> list[Finding]:
    """All findings, by file and line. Files that could not be read are errors of the rule ``unreadable``."""
    found = [
        Finding(p.file, p.line, p.where or "file", "error", "unreadable", p.problem) for p in loaded.problems
    ]
    for held in loaded.recipes.values():
        for path, level, rule, message in problems(held.recipe, set(loaded.recipes), today):
            found.append(_finding(held, path, level, rule, message))
    return sorted(found, key=lambda item: (item.file, item.line, item.rule))


def problems(recipe: Recipe, recipe_ids: set[str], today: int) -> Iterator[Problem]:
    """Of one recipe; ``recipe_ids`` are those that ``related`` may name."""
    for rule in RULES:
        yield from rule(recipe)
    for index, related in enumerate(recipe.related):
        if related.recipe is not None and related.recipe not in recipe_ids:
            yield ("related", index, "recipe"), "error", "dangling", f"no recipe {related.recipe!r}"
    for path, date in _dates(recipe):
        if date_span(date)[0] > today:
            yield path, "warning", "future-date", f"{date} has not come yet"


def _finding(held: RecipeFile, path: Path, level: Level, rule: str, message: str) -> Finding:
    return Finding(held.located.file, held.located.line_of(path), dotted(path), level, rule, message)


def _references(recipe: Recipe) -> Iterator[Problem]:
    sources = {source.id for source in recipe.sources}
    names = [profile.name for profile in recipe.profiles]
    numbers = [item.id for item in recipe.measurements]
    for kind, ids in (
        ("profiles", names),
        ("measurements", numbers),
        ("sources", [s.id for s in recipe.sources]),
    ):
        for index, name in enumerate(ids):
            if name in ids[:index]:
                yield (kind, index), "error", "twice", f"{name!r} is given twice"
    if recipe.headline is not None and recipe.headline not in numbers:
        yield ("headline",), "error", "dangling", f"no measurement {recipe.headline!r}"
    for index, profile in enumerate(recipe.profiles):
        if profile.extends is not None and profile.extends not in names:
            yield ("profiles", index, "extends"), "error", "dangling", f"no profile {profile.extends!r}"
    for index, item in enumerate(recipe.measurements):
        if item.profile is not None and item.profile not in names:
            yield ("measurements", index, "profile"), "error", "dangling", f"no profile {item.profile!r}"
    for kind in (
        "measurements",
        "confirmations",
        "prerequisites",
        "mechanisms",
        "failures",
        "issues",
        "tested",
    ):
        for index, part in enumerate(getattr(recipe, kind)):
            if part.source is not None and part.source not in sources:
                yield (kind, index, "source"), "error", "dangling", f"no source {part.source!r}"


def _profiles(recipe: Recipe) -> Iterator[Problem]:
    defaults = [index for index, profile in enumerate(recipe.profiles) if profile.default]
    if len(defaults) != 1:
        yield ("profiles",), "error", "one-default", f"{len(defaults)} profiles are marked as the default"
    parents = {profile.name: profile.extends for profile in recipe.profiles}
    for index, profile in enumerate(recipe.profiles):
        seen, name = {profile.name}, profile.extends
        while name is not None and name not in seen:
            seen.add(name)
            name = parents.get(name)
        if name is not None:
            yield ("profiles", index, "extends"), "error", "circle", "the profile extends itself"
            continue
        if any(parent is not None and parent not in parents for parent in map(parents.get, seen)):
            continue
        full = effective_profile(recipe, profile)
        cache, longest = full.cache_tokens.value, full.max_request_tokens.value
        place: Path = ("profiles", index)
        if cache is not None and cache % PAGE_TOKENS:
            message = f"{cache:,} tokens are no multiple of {PAGE_TOKENS}"
            yield (*place, "cache_tokens"), "warning", "whole-pages", message
        if cache is not None and longest is not None and longest > cache:
            message = f"a request of {longest:,} tokens is longer than the cache of {cache:,}"
            yield (*place, "max_request_tokens"), "error", "request-above-cache", message


def _units(recipe: Recipe) -> Iterator[Problem]:
    for index, item in enumerate(recipe.measurements):
        place: Path = ("measurements", index, "unit")
        wanted = " or ".join(METRIC_UNITS[item.metric])
        if item.unit is None:
            yield place, "error", "missing-unit", f"no unit; {item.metric} is measured in {wanted}"
        elif item.unit not in METRIC_UNITS[item.metric]:
            yield place, "error", "wrong-unit", f"{item.metric} is measured in {wanted}, not in {item.unit}"


def _numbers(recipe: Recipe) -> Iterator[Problem]:
    for index, item in enumerate(recipe.measurements):
        place: Path = ("measurements", index)
        if item.source is None and item.artifact is None:
            yield place, "error", "no-source", f"{item.id}: neither a source nor a kept record"
        if item.span is None and not item.candidates:
            yield place, "error", "no-value", f"{item.id}: neither a value, a range nor candidates"
        missing = [
            word
            for word, known in (
                ("who measured it", item.by),
                ("when", item.when),
                ("the workload", item.workload or item.metric not in ("decode", "prefill", "ttft")),
                ("the profile", item.profile or item.deviations),
            )
            if not known
        ]
        if missing:
            yield place, "note", "half-told", f"{item.id}: not told: {', '.join(missing)}"


def _headline(recipe: Recipe) -> Iterator[Problem]:
    number = headline(recipe)
    if number is None:
        if recipe.measurements:
            yield ("headline",), "note", "no-headline", "no measurement is marked as the recipe's speed"
        return
    if number.deviations:
        told = ", ".join(number.deviations)
        message = f"{number.text()} was measured {told}, not with the recipe's own configuration"
        yield ("headline",), "warning", "headline-deviates", message
    if number.workload is None:
        yield ("headline",), "warning", "headline-workload", f"{number.text()}: of which text is not told"


def _capacity(recipe: Recipe) -> Iterator[Problem]:
    exposed, count = recipe.hardware.exposed_gib.value, recipe.hardware.count.value
    download = recipe.quant.download_gb.value
    download_gib = None if download is None else download * 1e9 / GIB
    for index, item in enumerate(recipe.measurements):
        place: Path = ("measurements", index)
        gib = _vram_gib(item)
        if gib is None or exposed is None:
            continue
        if gib > exposed:
            message = f"{item.text()} on a card that exposes {exposed:g} GiB; perhaps another unit"
            yield place, "warning", "above-capacity", message
        elif item.stat is None and _same_size(gib, count, download_gib):
            message = f"{count} × {item.text()} is the size of the download, not what a card holds"
            yield place, "warning", "download-as-memory", message
    if None not in (exposed, count, download_gib) and download_gib > exposed * count:  # type: ignore[operator]
        yield (
            ("quant", "download_gb"),
            "warning",
            "weights-above-memory",
            "the weights alone exceed the cards",
        )


def _same_size(gib: float, count: int | None, download_gib: float | None) -> bool:
    if count is None or download_gib is None:
        return False
    return abs(gib * count - download_gib) <= 0.01 * download_gib


def _vram_gib(item: Measurement) -> float | None:
    scale = unit_scale(item)
    if item.metric != "vram" or item.span is None or scale is None:
        return None
    return item.span[1] * scale


def _pins(recipe: Recipe) -> Iterator[Problem]:
    pins: tuple[tuple[Path, Stated[str]], ...] = (
        (("quant", "revision"), recipe.quant.revision),
        (("engine", "version"), recipe.engine.version),
        (("engine", "commit"), recipe.engine.commit),
    )
    for path, pin in pins:
        if (
            pin.value is None
            and pin.basis != "not_applicable"
            and not (path[1] == "commit" and recipe.engine.digest)
        ):
            yield path, "warning", "unpinned", f"the {' '.join(map(str, path))} is not pinned"
        elif pin.value is not None and pin.value.lower() in _MOVING:
            yield path, "warning", "moving-pin", f"{pin.value!r} moves; name a commit"
    for index, drafter in enumerate(recipe.drafters):
        if drafter.repo is not None and drafter.revision is None:
            yield (
                ("drafters", index, "revision"),
                "warning",
                "unpinned",
                "the drafter's revision is not pinned",
            )
        if drafter.repo is not None and drafter.licence is None:
            yield ("drafters", index, "licence"), "note", "no-licence", "the drafter's licence is not told"


def _evidence(recipe: Recipe) -> Iterator[Problem]:
    tested = [test.date.value for test in recipe.tested if test.date.value is not None]
    first = min((date_span(date)[0] for date in tested), default=None)
    for index, item in enumerate(recipe.confirmations):
        place: Path = ("confirmations", index)
        if first is not None and date_span(item.date)[1] <= first:
            message = f"@{item.by} confirms on {item.date} what was first tested later"
            yield (*place, "date"), "warning", "confirmed-before-test", message
        if item.outcome is None:
            yield place, "note", "no-outcome", f"@{item.by}'s confirmation does not say what it showed"
        if item.measurement is not None and item.measurement not in {m.id for m in recipe.measurements}:
            yield (*place, "measurement"), "error", "dangling", f"no measurement {item.measurement!r}"


def _dates(recipe: Recipe) -> Iterator[tuple[Path, str]]:
    for index, item in enumerate(recipe.confirmations):
        yield ("confirmations", index, "date"), item.date
    for index, number in enumerate(recipe.measurements):
        if number.when is not None:
            yield ("measurements", index), number.when
    for index, test in enumerate(recipe.tested):
        if test.date.value is not None:
            yield ("tested", index, "date"), test.date.value


RULES: tuple[Rule, ...] = (
    _references, _profiles, _units, _numbers, _headline, _capacity, _pins, _evidence,
)  # fmt: skip
