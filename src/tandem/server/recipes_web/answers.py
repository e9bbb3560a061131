"""The JSON of the catalogue: what FastAPI documents and clients read. Links are relative to the server."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from tandem.recipes.catalogue import Catalogue, Entry
from tandem.recipes.drilldown import Drilldown, FacetView
from tandem.recipes.export import document
from tandem.recipes.facets import VERDICTS, Facet, facets_of
from tandem.recipes.fit import HARDWARE_PATTERN
from tandem.recipes.query import FIND, MAX_LIMIT, MAX_TERMS, MAX_TOP, sort_keys
from tandem.recipes.terms import MAX_TERM_CHARACTERS


class ValueAnswer(BaseModel):
    id: str
    label: str
    count: int
    selected: bool
    toggle_url: str


class FacetAnswer(BaseModel):
    key: str
    label: str
    type: str
    unit: str
    total: int
    unknown: int
    distinct: int
    truncated: bool
    values: list[ValueAnswer]


class CrumbAnswer(BaseModel):
    label: str
    value: str
    remove_url: str


class DrilldownAnswer(BaseModel):
    """``query`` are the canonical parameters; ``next`` and ``previous`` are addresses."""

    query: list[tuple[str, str]]
    canonical_url: str
    total: int
    records: int
    crumbs: list[CrumbAnswer]
    facets: list[FacetAnswer]
    rows: list[dict[str, Any]]
    next: str | None
    previous: str | None
    dataset_version: str


class ErrorDetail(BaseModel):
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


class RecipeAnswer(BaseModel):
    """``recipe`` is in the schema of the files; the rest is computed."""

    recipe: dict[str, Any]
    model: dict[str, Any]
    status: str
    warnings: list[str]
    missing: list[str]
    because: list[str]
    completeness_percent: int
    origin: str
    fits: dict[str, Any] = Field(default_factory=dict)


def drilldown_answer(catalogue: Catalogue, found: Drilldown, address: str, version: str) -> DrilldownAnswer:
    return DrilldownAnswer(
        query=found.query.pairs(),
        canonical_url=address + found.query.query_string(),
        total=found.total,
        records=found.records,
        crumbs=[
            CrumbAnswer(label=c.label, value=c.value, remove_url=address + c.remove) for c in found.crumbs
        ],
        facets=[facet_answer(view, address) for view in found.facets],
        rows=catalogue.rows(found.query, found.rows),
        next=None if found.next is None else address + found.next,
        previous=None if found.previous is None else address + found.previous,
        dataset_version=version,
    )


def facet_answer(view: FacetView, address: str) -> FacetAnswer:
    return FacetAnswer(
        key=view.facet.key,
        label=view.facet.label,
        type=view.facet.kind,
        unit=view.facet.unit,
        total=view.total,
        unknown=view.unknown,
        distinct=view.distinct,
        truncated=view.truncated,
        values=[
            ValueAnswer(
                id=value.id,
                label=value.label,
                count=value.count,
                selected=value.selected,
                toggle_url=address + value.toggle,
            )
            for value in view.values
        ],
    )


def recipe_answer(entry: Entry, fits: dict[str, Any]) -> RecipeAnswer:
    return RecipeAnswer(
        recipe=document(entry.recipe),
        model=entry.model.model_dump(mode="json", exclude_defaults=True),
        status=entry.standing.status,
        warnings=list(entry.standing.overlays),
        missing=list(entry.standing.missing),
        because=list(entry.standing.because),
        completeness_percent=entry.standing.completeness_percent,
        origin=entry.origin,
        fits=fits,
    )


_NUMBER = r"[-+]?[0-9]{1,12}(\.[0-9]{1,6})?"
_DATE = r"2[0-9]{3}(-(0[1-9]|1[0-2])(-(0[1-9]|1[0-9]|2[0-8]))?)?"
_WORDS = "~none|~na"
_OPEN_TERM = r"^([^~][\s\S]*|~~[\s\S]*|~none|~na|~other)$"


def query_parameters() -> list[dict[str, Any]]:
    """OpenAPI's description of every parameter of a drilldown."""
    plain = [
        _parameter("q", {"type": "string", "maxLength": 200}, "Search."),
        _parameter("grain", {"enum": ["recipe", "profile", "measurement"]}, "What a row is."),
        HARDWARE,
        _parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}, "Rows on a page."),
        _parameter("top", {"type": "integer", "minimum": 1, "maximum": MAX_TOP}, "Values listed of a facet."),
        _parameter("possible", {"enum": ["0", "1"]}, "Count unresolved candidates as values."),
        _parameter("strict", {"enum": ["0", "1"]}, "Intervals must lie wholly inside a range."),
        _parameter("cursor", {"type": "string"}, "From `next` or `previous`; opaque."),
        _parameter("sort", {"enum": _sorts()}, "A facet, or title; `-` for descending."),
    ]
    shared = facets_of("recipe")
    return plain + [parameter for facet in shared for parameter in _facet_parameters(facet)]


def _sorts() -> list[str]:
    keys = ("title", *sort_keys(facets_of("recipe")))
    return [sign + key for key in keys for sign in ("", "-")]


def _facet_parameters(facet: Facet) -> list[dict[str, Any]]:
    if facet.kind == "number":
        item: dict[str, Any] = {"type": "string", "pattern": f"^({_NUMBER}|{_NUMBER}\\.\\.|{_WORDS})$"}
    elif facet.kind == "date":
        item = {"type": "string", "pattern": f"^({_DATE}|{_DATE}\\.\\.|{_WORDS})$"}
    elif facet.key == "fits":
        item = {"enum": [*VERDICTS]}
    elif facet.choices is not None:
        item = {"enum": [*facet.choices, "~none", "~na", "~other"]}
    else:
        item = {"type": "string", "maxLength": MAX_TERM_CHARACTERS, "pattern": _OPEN_TERM}
    values = {"type": "array", "items": item, "maxItems": MAX_TERMS}
    unit = f" ({facet.unit})" if facet.unit else ""
    parameters = [
        _parameter(facet.key, values, f"{facet.label}{unit}: any of these."),
        _parameter(f"{facet.key}.not", values, f"{facet.label}{unit}: none of these."),
    ]
    if facet.multi:
        parameters.append(_parameter(f"{facet.key}.all", values, f"{facet.label}: all of these."))
    if facet.kind == "term":
        text = {"type": "string", "maxLength": 200}
        parameters.append(
            _parameter(FIND + facet.key, text, f"List values of {facet.label} that hold this text.")
        )
    return parameters


def _parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


HARDWARE = _parameter(
    "hw", {"type": "string", "pattern": f"^( *{HARDWARE_PATTERN} *)?$"}, "Your cards: 2x64gib or 64gib,48gib."
)
