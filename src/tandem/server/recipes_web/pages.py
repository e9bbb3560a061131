"""What the pages are made of: the values that templates show, and the templates themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tandem.recipes.catalogue import Catalogue, Entry
from tandem.recipes.drilldown import Drilldown, FacetView
from tandem.recipes.facets import LABELS
from tandem.recipes.facts import headline, shown, workload_text
from tandem.recipes.fit import FitReport, Hardware
from tandem.recipes.measurement import Measurement
from tandem.recipes.profiles import effective_profile
from tandem.recipes.query import Query
from tandem.recipes.schema import Profile, Recipe
from tandem.recipes.status import NumberStanding, number_standing
from tandem.server.recipes_web.pictures import fit_bars, term_table

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

MODEL_KINDS = {"moe": "mixture of experts", "dense": "dense"}
VERDICT_LABELS = {"fits": "fits", "marginal": "marginal", "no": "does not fit", "unknown": "not known"}
OUTCOMES = {
    "boots": "it starts",
    "serves": "it serves",
    "number": "measured a number",
    "fails": "it fails",
    "disputes": "objects",
}
_RELATIONS = {
    "extended_by": "Extended by",
    "extends": "Extends",
    "alternative_to": "Alternative to",
    "replaces": "Replaces",
    "replaced_by": "Replaced by",
}


def make_templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def assets_version() -> str:
    """Changes when a style sheet or script does."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of the table; ``link`` sorts by it."""

    label: str
    cls: str
    link: str | None
    sorted: str | None


@dataclass(frozen=True, slots=True)
class ShownFacet:
    """A facet as the page folds it."""

    view: FacetView
    open: bool
    chosen: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)


_HEADINGS: dict[str, tuple[tuple[str, str, str | None], ...]] = {
    "recipe": (
        ("Recipe", "", "title"),
        ("Cards", "", "cards"),
        ("Longest request", "num", "-context"),
        ("Decode", "num", "-decode_tps"),
        ("Status", "", "status"),
        ("Tested", "", "-tested_on"),
    ),
    "profile": (
        ("Profile", "", "title"),
        ("Longest request", "num", "-context"),
        ("Cache", "", None),
        ("At once", "num", "-slots"),
        ("Speculation", "", None),
        ("Status", "", "status"),
    ),
    "measurement": (
        ("Number", "", "title"),
        ("Configuration", "", None),
        ("Workload", "", None),
        ("By", "", None),
        ("When", "", "-measured_on"),
        ("Standing", "", None),
    ),
}


def drilldown_values(catalogue: Catalogue, found: Drilldown) -> dict[str, Any]:
    """Everything ``drilldown.html`` shows."""
    query = found.query
    bare = Query(grain=query.grain, hardware=query.hardware)
    hw_text = "" if query.hardware is None else query.hardware.text()
    return {
        "here": "drilldown",
        "query": query,
        "search": query.search,
        "total": found.total,
        "records": found.records,
        "crumbs": found.crumbs,
        "canonical": query.query_string(),
        "reset": bare.query_string(),
        "rows": catalogue.rows(query, found.rows),
        "first": found.first,
        "next": found.next,
        "previous": found.previous,
        "columns": _headings(query),
        "grains": _grains(query),
        "sections": _sections(found),
        "hw": hw_text,
        "hw_link": Query(hardware=query.hardware).query_string(),
        "hidden_fields": HiddenFields(query),
        "possible_link": replace(query, possible=not query.possible, cursor="").query_string(),
        "strict_link": replace(query, strict=not query.strict, cursor="").query_string(),
        "problems": [str(problem) for problem in catalogue.problems()],
    }


class HiddenFields:
    """The query as hidden inputs, for forms that change one thing of it."""

    def __init__(self, query: Query) -> None:
        field = Markup('<input type="hidden" name="{}" value="{}">')
        self._fields = [(key, field.format(key, value)) for key, value in query.pairs() if key != "cursor"]

    def __call__(self, without: Sequence[str]) -> Markup:
        return Markup("").join(field for key, field in self._fields if key not in without)


def _headings(query: Query) -> list[Heading]:
    now = ("-" if query.descending else "") + (query.sort or "title")
    headings = []
    for label, cls, sort in _HEADINGS[query.grain]:
        if sort is None:
            headings.append(Heading(label, cls, None, None))
            continue
        key, first_down = sort.removeprefix("-"), sort.startswith("-")
        is_now = now.removeprefix("-") == key
        down = not now.startswith("-") if is_now else first_down
        link = replace(query, sort=None if key == "title" else key, descending=down, cursor="").query_string()
        state = ("descending" if now.startswith("-") else "ascending") if is_now else None
        headings.append(Heading(label, cls, link, state))
    return headings


def _grains(query: Query) -> list[tuple[str, str, str]]:
    return [
        ("recipe", "Recipes", _regrained(query, "recipe")),
        ("profile", "Profiles", _regrained(query, "profile")),
        ("measurement", "Numbers", _regrained(query, "measurement")),
    ]


def _regrained(query: Query, grain: Any) -> str:
    kept = {key: held for key, held in query.filters.items() if key not in _NUMBER_ONLY}
    sort = None if query.sort in _NUMBER_ONLY else query.sort
    filters = query.filters if grain == "measurement" else kept
    return replace(query, grain=grain, filters=filters, sort=sort, cursor="").query_string()


_NUMBER_ONLY = {"metric", "method", "measured_by", "measured_on"}


def _sections(found: Drilldown) -> list[tuple[str, list[ShownFacet]]]:
    shown = []
    for view in found.facets:
        chosen = sum(value.selected for value in view.values)
        says_something = view.distinct > 0 or chosen or view.find
        if says_something:
            is_open = bool(chosen or view.find or not view.facet.folded)
            shown.append(ShownFacet(view, is_open, chosen))
    return [(name, list(facets)) for name, facets in groupby(shown, key=lambda item: item.view.facet.section)]


@dataclass(frozen=True, slots=True)
class ShownProfile:
    profile: Profile
    full: Profile
    fit: FitReport | None
    reason: str
    bars: Markup
    terms: list[tuple[str, list[str]]]


@dataclass(frozen=True, slots=True)
class ShownNumber:
    number: Measurement
    label: str
    workload: str
    standing: NumberStanding


def recipe_values(catalogue: Catalogue, entry: Entry, hardware: Hardware | None) -> dict[str, Any]:
    """Everything ``recipe.html`` shows."""
    recipe = entry.recipe
    values = {
        "here": "recipe",
        "recipe": recipe,
        "model": entry.model,
        "standing": entry.standing,
        "origin": entry.origin,
        "sources": {source.id: source for source in recipe.sources},
        "claimed": _claimed(entry),
        "hardware_line": _hardware_line(recipe),
        "pins": _pins(recipe),
        "profiles": [_shown_profile(catalogue, recipe, profile, hardware) for profile in recipe.profiles],
        "groups": _groups(recipe),
        "shadow": _shadow(recipe),
        "related": _related(catalogue, recipe),
        "outcomes": OUTCOMES,
        "verdicts": VERDICT_LABELS,
        "hw": "" if hardware is None else hardware.text(),
    }
    values["contents"] = [
        (anchor, label)
        for anchor, label, there in (
            ("prerequisites", "Prerequisites", recipe.prerequisites),
            ("steps", "Steps", recipe.steps),
            ("pins", "Pins", True),
            ("evidence", "Evidence", not recipe.steps),
            ("profiles", "Profiles", True),
            ("mechanisms", "What makes it work", recipe.mechanisms),
            ("numbers", "Measured numbers", recipe.measurements),
            ("issues", "Known issues", recipe.issues),
            ("evidence", "Evidence", recipe.steps),
            ("related", "Related", recipe.related),
            ("sources", "Sources", True),
        )
        if there
    ]
    return values


def _claimed(entry: Entry) -> str:
    claimed = entry.recipe.status_claimed
    if claimed.value is None or claimed.value == entry.standing.status:
        return ""
    return LABELS[claimed.value]


def _hardware_line(recipe: Recipe) -> str:
    hardware = recipe.hardware
    count, sold, exposed = hardware.count.value, hardware.sold_gib.value, hardware.exposed_gib.value
    parts = [f"{count} × {hardware.card.text()}" if count is not None else hardware.card.text()]
    if sold is not None:
        parts.append(f"sold as {sold:g} GB")
    if exposed is not None:
        parts.append(f"{exposed:g} GiB exposed")
    return ", ".join(part for part in parts if part)


def _pins(recipe: Recipe) -> list[tuple[str, str, str | None]]:
    quant, engine = recipe.quant, recipe.engine
    pins = [
        ("Weights", quant.repo.text(), quant.revision.value),
        (
            "Engine",
            " ".join(filter(None, (shown("engine", engine.name), engine.version.text()))),
            engine.commit.value or engine.digest,
        ),
    ]
    if engine.server is not None:
        pins.append(("Server", engine.server, engine.server_commit))
    pins += [("Drafter", item.repo, item.revision) for item in recipe.drafters if item.repo is not None]
    return pins


def _shown_profile(
    catalogue: Catalogue, recipe: Recipe, profile: Profile, hardware: Hardware | None
) -> ShownProfile:
    full = effective_profile(recipe, profile)
    if hardware is None:
        return ShownProfile(profile, full, None, "", Markup(""), [])
    report = catalogue.fit(recipe, profile, hardware)
    limits = report.limiting_card
    reason = report.reason.rstrip(".") + "."
    if limits is None or not reason.startswith(limits):
        reason = reason[:1].upper() + reason[1:]
    if limits is not None and limits not in reason:
        reason += f" The card that limits is {limits}."
    return ShownProfile(profile, full, report, reason, fit_bars(report), term_table(report))


def _groups(recipe: Recipe) -> list[tuple[str, str, list[ShownNumber]]]:
    """The numbers by configuration: profile and what was changed of it."""
    held: dict[tuple[str | None, tuple[str, ...]], list[ShownNumber]] = {}
    for item in recipe.measurements:
        number = ShownNumber(
            item, LABELS.get(item.metric, item.metric), workload_text(item), number_standing(recipe, item)
        )
        held.setdefault((item.profile, item.deviations), []).append(number)
    return [
        (f"Profile {profile}" if profile else "Profile not told", ", ".join(deviations), items)
        for (profile, deviations), items in held.items()
    ]


def _shadow(recipe: Recipe) -> str:
    """The warning that belongs to a headline taken in another configuration than the recipe's."""
    number = headline(recipe)
    if number is None or not number.deviations:
        return ""
    return (
        f"The number shown as this recipe's speed, {number.text()}, was measured "
        f"{', '.join(number.deviations)}: not in the configuration that the recipe runs."
    )


def _related(catalogue: Catalogue, recipe: Recipe) -> list[tuple[str, str, str | None, str | None]]:
    known = set(catalogue.recipe_ids())
    rows: list[tuple[str, str, str | None, str | None]] = []
    for item in recipe.related:
        if item.recipe in known and item.recipe is not None:
            title = catalogue.entry(item.recipe).recipe.title
            rows.append((_RELATIONS[item.kind], title, item.recipe, item.text))
        else:
            rows.append(
                (
                    _RELATIONS[item.kind],
                    item.recipe or item.text or "",
                    None,
                    item.text if item.recipe else None,
                )
            )
    return rows
