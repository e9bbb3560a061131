"""The infobox of a recipe's page: label and cell, each cell safe HTML made from typed fields."""

from __future__ import annotations

from markupsafe import Markup, escape

from tandem.recipes.catalogue import Entry
from tandem.recipes.facts import headline
from tandem.recipes.profiles import default_profile, effective_profile
from tandem.recipes.schema import Recipe
from tandem.recipes.status import number_standing
from tandem.recipes.values import Stated, plain_text

_GAP = Markup('<span class="gap">not stated</span>')


def infobox(entry: Entry) -> list[tuple[str, Markup]]:
    """Rows in the order of the source's page; every number links to its measurement."""
    recipe = entry.recipe
    profile = effective_profile(recipe, default_profile(recipe))
    rows: list[tuple[str, Markup]] = [
        ("Quant", _cell(recipe.quant.label) if _told(recipe.quant.label) else _cell(recipe.quant.scheme)),
        ("Engine", _cell(recipe.engine.label) if _told(recipe.engine.label) else _cell(recipe.engine.name)),
        (
            "Topology",
            escape(recipe.topology.label) if recipe.topology.label else _cell(recipe.topology.layout),
        ),
        ("Context", _cell(recipe.context) if _told(recipe.context) else _cell(profile.max_request_tokens)),
        ("Decode", _decode(recipe)),
    ]
    prefill = [item for item in recipe.measurements if item.metric == "prefill"]
    if prefill:
        rows.append(("Prefill", _number(prefill[0].id, prefill[0].text())))
    rows.append(("VRAM per card", _cell(recipe.vram)))
    if _told(recipe.hardware.power_limit_w):
        rows.append(("Power", _cell(recipe.hardware.power_limit_w, "W")))
    if _told(recipe.hardware.driver):
        rows.append(("Driver", _cell(recipe.hardware.driver)))
    if _told(recipe.hardware.unlock):
        rows.append(("Unlock", _cell(recipe.hardware.unlock)))
    if profile.flags:
        rows.append(
            ("Flags", Markup(" ").join(Markup("<code>{}</code>").format(flag) for flag in profile.flags))
        )
    rows += [
        ("Tested", _tested(recipe)),
        ("Source", _source(recipe)),
        ("Confirmations", _confirmations(recipe)),
    ]
    return rows


def _told(field: Stated[str | int | float]) -> bool:
    return field != Stated() and not (
        field.value is None and field.raw is None and not field.candidates and not field.note
    )


def _cell(field: Stated[str | int | float], unit: str = "") -> Markup:
    if field.raw is not None or field.value is not None:
        text = escape(field.text(unit))
        if field.basis == "inferred":
            text += Markup(' <span class="basis" title="concluded by the transcriber">inferred</span>')
    elif field.candidates:
        options = " or ".join(
            "not stated" if value is None else plain_text(value) for value in field.candidates
        )
        text = Markup('<span class="basis">unresolved</span> {}').format(options)
    elif field.basis == "not_applicable":
        text = Markup('<span class="gap">cannot apply</span>')
    else:
        text = _GAP
    return text


def _number(measurement_id: str, text: str) -> Markup:
    return Markup('<a href="#number-{}">{}</a>').format(measurement_id, text or "no value")


def _decode(recipe: Recipe) -> Markup:
    number = headline(recipe)
    if number is None:
        number = next((item for item in recipe.measurements if item.metric == "decode"), None)
    if number is None:
        return _GAP
    cell = _number(number.id, number.text())
    if number_standing(recipe, number) == "deviating":
        cell += Markup(' <span class="sub warn">{}</span>').format(", ".join(number.deviations))
    return cell


def _tested(recipe: Recipe) -> Markup:
    cells = []
    for test in recipe.tested:
        who = Markup("@") + _cell(test.by) if test.by.value is not None else _cell(test.by)
        cells.append(Markup("{} on {}").format(who, _cell(test.date)))
    return Markup("<br>").join(cells) or _GAP


def _source(recipe: Recipe) -> Markup:
    return Markup('<a href="#source-{}">{}</a>').format(recipe.sources[0].id, recipe.sources[0].title)


def _confirmations(recipe: Recipe) -> Markup:
    if not recipe.confirmations:
        return Markup('<span class="gap">none</span>')
    told = Markup("<br>").join(
        Markup("@{}, {}").format(item.by, item.date) for item in recipe.confirmations[:3]
    )
    return told + Markup(' <a href="#evidence">details</a>')
