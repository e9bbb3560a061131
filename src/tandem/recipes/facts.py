"""From a recipe to the cells it is drilled by, the rows it is listed as, and the words it is found by."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from tandem.recipes.facets import BY_KEY, LABELS, METRIC_GROUPS, Cell, Cells, Group, Member
from tandem.recipes.measurement import METRIC_UNITS, Measurement
from tandem.recipes.profiles import default_profile, effective_profile
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import Profile, Recipe
from tandem.recipes.status import Standing, number_standing
from tandem.recipes.terms import term_value
from tandem.recipes.values import Stated

Summary = dict[str, object]


@dataclass(frozen=True, slots=True)
class FactSheet:
    """All that the store keeps of one recipe besides its document."""

    cells: Cells
    summary: Summary
    profiles: tuple[Member, ...]
    measurements: tuple[Member, ...]
    words: dict[str, str]
    """Texts for the full-text search, by column."""


def fact_sheet(recipe: Recipe, model: ModelEntry, standing: Standing, origin: str) -> FactSheet:
    profiles = tuple(
        _profile_member(recipe, effective_profile(recipe, profile), index)
        for index, profile in enumerate(recipe.profiles)
    )
    return FactSheet(
        cells=_recipe_cells(recipe, standing, origin),
        summary=_recipe_summary(recipe, model, standing, origin),
        profiles=profiles,
        measurements=tuple(_measurement_member(recipe, item) for item in recipe.measurements),
        words=_words(recipe, model),
    )


def _term(field: Stated[str]) -> Cell:
    return Cell(
        values=() if field.value is None else (term_value(str(field.value)),),
        possible=tuple(term_value(str(value)) for value in field.stated_candidates),
        not_applicable=field.basis == "not_applicable",
    )


def _number(field: Stated[float]) -> Cell:
    return Cell(
        values=() if field.value is None else ((float(field.value), float(field.value)),),
        possible=tuple((float(value), float(value)) for value in field.stated_candidates),
        not_applicable=field.basis == "not_applicable",
    )


def _terms(values: list[str | None], possible: list[str] | None = None) -> Cell:
    return Cell(
        tuple(dict.fromkeys(term_value(value) for value in values if value is not None)),
        tuple(dict.fromkeys(map(term_value, possible or ()))),
    )


def _recipe_cells(recipe: Recipe, standing: Standing, origin: str) -> Cells:
    hardware = recipe.hardware
    driver = _term(hardware.driver)
    if hardware.driver_at_least:
        driver = Cell(tuple(f">={value}" for value in driver.values), driver.possible, driver.not_applicable)
    licences = [recipe.quant.licence.value, *(item.licence for item in recipe.drafters)]
    domains = [urlsplit(source.url).hostname for source in recipe.sources if source.url]
    dates = [test.date for test in recipe.tested]
    people = [test.by for test in recipe.tested]
    return {
        "model": Cell((recipe.model,)),
        "quant": _term(recipe.quant.scheme),
        "bpw": _number(recipe.quant.bpw),
        "quant_repo": _term(recipe.quant.repo),
        "licence": _terms([*licences, *(source.licence for source in recipe.sources)]),
        "engine": _term(recipe.engine.name),
        "engine_version": _term(recipe.engine.version),
        "engine_commit": _term(recipe.engine.commit),
        "card": _term(hardware.card),
        "cards": _number(hardware.count),
        "nodes": _number(hardware.nodes),
        "sold_gib": _number(hardware.sold_gib),
        "exposed_gib": _number(hardware.exposed_gib),
        "p2p": _term(hardware.peer_copies),
        "power_w": _number(hardware.power_limit_w),
        "driver": driver,
        "unlock": _term(hardware.unlock),
        "layout": _term(recipe.topology.layout),
        "degree": _number(recipe.topology.degree),
        "status": Cell((standing.status,)),
        "standing": Cell(tuple(standing.overlays)),
        "claimed": _term(recipe.status_claimed),
        "tested_by": _terms(
            [person.value for person in people], [c for person in people for c in person.stated_candidates]
        ),
        "tested_on": _terms(
            [date.value for date in dates], [c for date in dates for c in date.stated_candidates]
        ),
        "confirmed_by": _terms([item.by for item in recipe.confirmations]),
        "source_type": _terms([source.type for source in recipe.sources]),
        "source_domain": _terms(list(domains)),
        "completeness": Cell(((float(standing.completeness_percent),) * 2,)),
        "origin": Cell((origin,)),
    }


def _profile_member(recipe: Recipe, profile: Profile, index: int) -> Member:
    cells = {
        "context": _number(profile.max_request_tokens),
        "pool": _number(profile.pool_tokens if profile.pool_tokens != Stated() else profile.cache_tokens),
        "kv": _term(profile.kv),
        "slots": _number(profile.slots),
        "drafter": _terms([profile.drafter]),
    }
    summary: Summary = {
        "profile": profile.name,
        "default": profile.default,
        "untested": profile.untested,
        "context": profile.max_request_tokens.text("tokens"),
        "kv": shown("kv", profile.kv),
        "slots": profile.slots.text(),
        "drafter": LABELS.get(profile.drafter or "", profile.drafter or ""),
        "margin_mib": profile.margin_mib,
    }
    return Member("profile", cells, index, summary)


def _measurement_member(recipe: Recipe, item: Measurement) -> Member:
    group: Group = item.metric if item.metric in METRIC_GROUPS else "measurement"
    workload = item.workload
    text_class = None if workload is None else workload.text_class
    number = _measured(item)
    standing = number_standing(recipe, item)
    cells: Cells = {
        "metric": Cell((item.metric,)),
        "method": Cell((item.method,)),
        "measured_by": _terms([item.by]),
        "measured_on": _terms([item.when]),
    }
    if group == "decode":
        cells |= {
            "decode_tps": number,
            "decode.class": _terms([text_class]),
            "decode.scope": _terms([item.scope]),
            "decode.standing": Cell((standing,)),
            "decode.by": _terms([item.by]),
        }
    elif group == "prefill":
        cells |= {"prefill_tps": number, "prefill.class": _terms([text_class])}
    elif group == "ttft":
        prompt = None if workload is None else workload.prompt_tokens
        cells |= {
            "ttft_s": number,
            "ttft.cache": _terms([None if workload is None else workload.cache]),
            "ttft.prompt": Cell() if prompt is None else Cell(((float(prompt), float(prompt)),)),
        }
    elif group == "vram":
        cells |= {
            "vram_gib": number,
            "vram.stat": _terms([item.stat if item.stat in ("idle", "peak") else None]),
        }
    names = [profile.name for profile in recipe.profiles]
    profile = names.index(item.profile) if item.profile in names else None
    summary: Summary = {
        "measurement": item.id,
        "metric": item.metric,
        "number": item.text(),
        "standing": standing,
        "profile": item.profile,
        "deviations": list(item.deviations),
        "workload": workload_text(item),
        "by": item.by,
        "when": item.when,
        "method": item.method,
        "source": item.source,
    }
    return Member(group, cells, profile, summary)


def workload_text(item: Measurement) -> str:
    """The workload in words; empty where the source does not tell it."""
    workload = item.workload
    if workload is None:
        return ""
    parts = [workload.label or workload.text_class]
    if workload.label is None and workload.prompt_tokens is not None:
        parts.append(f"{workload.prompt_tokens:,} prompt tokens")
    if workload.output_tokens is not None:
        parts.append(f"{workload.output_tokens:,} output tokens")
    if workload.concurrency is not None:
        parts.append(f"{workload.concurrency} at once")
    if workload.cache is not None and workload.cache not in (workload.label or ""):
        parts.append({"cold": "cold", "repeat": "repeated", "follow_up": "reused prefix"}[workload.cache])
    return ", ".join(part for part in parts if part)


def _measured(item: Measurement) -> Cell:
    """The number in its metric's first unit; in an unknown unit it cannot be compared: not stated."""
    scale = unit_scale(item)
    if scale is None:
        return Cell()
    possible = tuple((value * scale, value * scale) for value in item.candidates)
    if item.span is None:
        return Cell(possible=possible)
    low, high = item.span
    return Cell(((low * scale, high * scale),), possible)


def unit_scale(item: Measurement) -> float | None:
    """What to multiply by to reach the metric's first unit; None for a missing or foreign unit."""
    if item.unit == METRIC_UNITS[item.metric][0]:
        return 1.0
    if item.metric == "vram":
        return {"MiB": 1 / 1024, "GB": 1e9 / 2**30}.get(item.unit or "")
    return None


def shown(key: str, field: Stated[str]) -> str:
    """The reader's word for a field that is drilled by facet ``key``."""
    return BY_KEY[key].label_of(field.value) if field.value is not None else field.text()


def headline(recipe: Recipe) -> Measurement | None:
    """The measurement shown as the recipe's speed."""
    return next((item for item in recipe.measurements if item.id == recipe.headline), None)


def _recipe_summary(recipe: Recipe, model: ModelEntry, standing: Standing, origin: str) -> Summary:
    number = headline(recipe)
    hardware = recipe.hardware
    count = f"{hardware.count.value} × " if hardware.count.value is not None else ""
    exposed = hardware.exposed_gib.value
    memory = f" ({exposed:g} GiB)" if exposed is not None else ""
    return {
        "id": recipe.id,
        "title": recipe.title,
        "model": model.name,
        "model_id": model.id,
        "quant": _joined(shown("quant", recipe.quant.scheme), recipe.quant.bpw.text("bpw")),
        "engine": _joined(shown("engine", recipe.engine.name), recipe.engine.version.text()),
        "hardware": f"{count}{hardware.card.text() or 'cards'}{memory}",
        "layout": shown("layout", recipe.topology.layout) or recipe.topology.label or "",
        "context": _longest_request(recipe),
        "decode": "" if number is None else number.text(),
        "decode_standing": "" if number is None else number_standing(recipe, number),
        "decode_deviations": [] if number is None else list(number.deviations),
        "tested": [[_short(test.by), _short(test.date)] for test in recipe.tested],
        "status": standing.status,
        "standing": list(standing.overlays),
        "claimed": _short(recipe.status_claimed),
        "origin": origin,
    }


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _short(field: Stated[str]) -> str:
    return "unresolved" if field.candidates else field.value or ""


def _longest_request(recipe: Recipe) -> str:
    tokens = effective_profile(recipe, default_profile(recipe)).max_request_tokens
    if tokens.value is None:
        return tokens.text()
    return ("about " if tokens.approximate else "") + f"{tokens.value:,}"


def _words(recipe: Recipe, model: ModelEntry) -> dict[str, str]:
    flags = [flag for profile in recipe.profiles for flag in (*profile.flags, profile.name)]
    names = [
        model.name,
        *model.aliases,
        recipe.model_label,
        recipe.quant.label.text(),
        recipe.quant.repo.value,
    ]
    setup = [
        recipe.engine.label.text(), recipe.engine.name.value, recipe.engine.server,
        recipe.engine.version.value, recipe.hardware.card.value, recipe.topology.label,
        recipe.hardware.unlock.text(),
        *(test.by.text() for test in recipe.tested),
    ]  # fmt: skip
    prose = [
        recipe.summary,
        *(item.text for item in recipe.issues),
        *(item.claim for item in recipe.mechanisms),
    ]
    return {
        "title": f"{recipe.title} {recipe.id}",
        "names": " ".join(item for item in names if item),
        "setup": " ".join(item for item in setup if item),
        "flags": " ".join(flags),
        "prose": " ".join(prose),
    }
