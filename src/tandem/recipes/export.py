"""The catalogue as files for other programs: CSV wide and long, JSON lines, YAML, CITATION.cff."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator

from tandem.recipes.facts import headline, workload_text
from tandem.recipes.profiles import default_profile, effective_profile
from tandem.recipes.register import ModelEntry
from tandem.recipes.schema import Recipe
from tandem.recipes.status import number_standing
from tandem.recipes.userdata import to_yaml
from tandem.recipes.values import Stated

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")

Field = Stated[str | int | float]

_WIDE: tuple[str, ...] = (
    "quant_scheme", "bpw", "quant_repo", "quant_revision", "engine", "engine_version", "engine_commit",
    "card", "cards", "nodes", "sold_gib", "exposed_gib", "peer_copies", "driver", "unlock", "power_limit_w",
    "layout", "degree", "max_request_tokens", "cache_tokens", "kv", "slots", "status_claimed",
)  # fmt: skip
_LONG = (
    "recipe", "measurement", "metric", "value", "low", "high", "unit", "approximate", "candidates", "profile",
    "deviations", "workload", "scope", "stat", "standing", "by", "date", "posted", "method", "source_title",
    "source_url",
)  # fmt: skip


def safe_cell(value: object) -> object:
    """A CSV cell that no spreadsheet takes for a formula: text that starts like one gets an apostrophe."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value


def csv_wide(recipes: Iterable[Recipe]) -> Iterator[str]:
    """One row a recipe; beside each value how it is known (stated, inferred, unresolved, not_applicable)."""
    header = ["id", "title", "model"]
    for name in _WIDE:
        header += [name, f"{name}_basis"]
    yield _line([*header, "decode", "decode_unit", "decode_deviations", "licence", "sources"])
    for recipe in recipes:
        row: list[object] = [recipe.id, recipe.title, recipe.model]
        for field in _wide_fields(recipe):
            row += [_cell(field), field.basis if field != Stated() else ""]
        number = headline(recipe)
        span = None if number is None else number.span
        row += [
            "" if span is None else (span[0] if span[0] == span[1] else f"{span[0]}..{span[1]}"),
            "" if number is None else number.unit,
            "" if number is None else "; ".join(number.deviations),
            recipe.quant.licence.text(),
            "; ".join(source.url or source.title for source in recipe.sources),
        ]
        yield _line(row)


def csv_long(recipes: Iterable[Recipe]) -> Iterator[str]:
    """One row a measurement."""
    yield _line(_LONG)
    for recipe in recipes:
        sources = {source.id: source for source in recipe.sources}
        for item in recipe.measurements:
            source = sources.get(item.source or "")
            yield _line(
                [
                    recipe.id, item.id, item.metric, item.value, item.low, item.high, item.unit,
                    int(item.approximate), " or ".join(map(str, item.candidates)), item.profile,
                    "; ".join(item.deviations), workload_text(item), item.scope, item.stat,
                    number_standing(recipe, item), item.by, item.date, item.posted, item.method,
                    None if source is None else source.title, None if source is None else source.url,
                ]
            )  # fmt: skip


def json_lines(recipes: Iterable[Recipe]) -> Iterator[str]:
    """One recipe a line, in the schema of the files."""
    for recipe in recipes:
        yield json.dumps(document(recipe), ensure_ascii=False, separators=(",", ":")) + "\n"


def yaml_documents(recipes: Iterable[Recipe]) -> Iterator[str]:
    """The recipes as files that can be added again."""
    for recipe in recipes:
        yield "---\n" + to_yaml(document(recipe))


def document(recipe: Recipe) -> dict[str, object]:
    """Plain data in the schema of the files, without what is at its default."""
    data: dict[str, object] = recipe.model_dump(mode="json", exclude_defaults=True)
    return data


def citation(recipe: Recipe, model: ModelEntry) -> str:
    """CITATION.cff 1.2.0 for one recipe."""
    people = dict.fromkeys(
        [
            *(source.author for source in recipe.sources),
            *(test.by.value for test in recipe.tested),
            *(item.by for item in recipe.measurements),
        ]
    )
    data: dict[str, object] = {
        "cff-version": "1.2.0",
        "message": "If you use this recipe, please cite the people who found and measured it.",
        "type": "dataset",
        "title": recipe.title,
        "version": str(recipe.revision),
        "abstract": recipe.summary,
        "authors": [{"alias": person} for person in people if person] or [{"name": "unknown"}],
        "keywords": [
            model.name,
            recipe.quant.scheme.text() or "quantization",
            recipe.engine.name.text() or "engine",
        ],
        "identifiers": [
            {"type": "other", "value": recipe.id, "description": "Id in the catalogue of recipes"}
        ],
    }
    if recipe.revised is not None and len(recipe.revised) == len("2026-10-20"):
        data["date-released"] = recipe.revised
    if first := next((source.url for source in recipe.sources if source.url), None):
        data["url"] = first
    data["references"] = [
        {"type": "generic", "title": source.title, "authors": [{"alias": source.author or "unknown"}]}
        | ({"url": source.url} if source.url else {})
        | ({"commit": source.commit} if source.commit else {})
        for source in recipe.sources
    ]
    return to_yaml(data)


def citations(recipes: Iterable[Recipe], models: dict[str, ModelEntry]) -> Iterator[str]:
    """One CITATION.cff document for each recipe."""
    for recipe in recipes:
        yield "---\n" + citation(recipe, models[recipe.model])


def _wide_fields(recipe: Recipe) -> list[Field]:
    quant, engine, hardware, topology = recipe.quant, recipe.engine, recipe.hardware, recipe.topology
    profile = effective_profile(recipe, default_profile(recipe))
    return [
        quant.scheme, quant.bpw, quant.repo, quant.revision, engine.name, engine.version, engine.commit,
        hardware.card, hardware.count, hardware.nodes, hardware.sold_gib, hardware.exposed_gib,
        hardware.peer_copies, hardware.driver, hardware.unlock, hardware.power_limit_w,
        topology.layout, topology.degree, profile.max_request_tokens, profile.cache_tokens, profile.kv,
        profile.slots, recipe.status_claimed,
    ]  # fmt: skip


def _cell(field: Field) -> object:
    if field.value is not None:
        return field.value
    return " or ".join(map(str, field.stated_candidates)) or field.raw or ""


def _line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow([safe_cell(cell) for cell in cells])
    return out.getvalue()
