"""``/recipes`` as a router: pages for people, JSON and files for programs, at the same addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from tandem import __version__
from tandem.recipes import export
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.compare import Side, compare, scatter_points
from tandem.recipes.facets import BY_KEY as FACET_KEYS
from tandem.recipes.fit import Hardware, parse_hardware
from tandem.recipes.query import Query
from tandem.recipes.query_error import QueryError, UnknownFacetError
from tandem.recipes.terms import value_term
from tandem.server.recipes_web import answers, pages
from tandem.server.recipes_web.infobox import infobox
from tandem.server.recipes_web.pictures import scatter
from tandem.server.recipes_web.respond import ROOT, Responder

_STATIC_TYPES = {"recipes.css": "text/css", "recipes.js": "text/javascript", "tandem.svg": "image/svg+xml"}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": answers.ErrorAnswer, "description": "A parameter that cannot be used, by name"},
    404: {"model": answers.ErrorAnswer, "description": "No such recipe"},
}
_ALL_VALUES = 10_000
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
_LISTED_IDS = 500


def recipes_router(catalogue: Catalogue, *, home: str | None = "/") -> APIRouter:
    """Everything under ``/recipes``. ``home`` is a link to the server's own page, None for none."""
    router = APIRouter()
    pages_ = _Pages(catalogue, Responder(catalogue, home))
    data = _Data(catalogue, Responder(catalogue, home))
    hidden = {
        "": pages_.drilldown,
        "/-/models": pages_.models,
        "/-/compare": pages_.compare,
        "/-/scatter": pages_.scatter,
        "/-/static/{name}": pages_.static,
        ".csv": data.csv_wide,
        "-numbers.csv": data.csv_long,
        ".jsonl": data.json_lines,
        ".yaml": data.yaml,
        "/{recipe_id}.yaml": data.recipe_yaml,
        "/{recipe_id}.cff": data.recipe_citation,
    }
    endpoint: Any
    for path, endpoint in hidden.items():
        router.add_api_route(ROOT + path, endpoint, include_in_schema=False, response_model=None)
    drilldown: dict[str, Any] = {"openapi_extra": {"parameters": answers.query_parameters()}}
    described: tuple[tuple[str, Any, Any, str, dict[str, Any]], ...] = (
        (".json", data.drilldown, answers.DrilldownAnswer, "Drill the catalogue", drilldown),
        ("/-/facets/{key}.json", data.facet, answers.FacetAnswer, "All values of one facet", drilldown),
        (
            "/{recipe_id}.json",
            data.recipe,
            answers.RecipeAnswer,
            "One recipe",
            {"openapi_extra": {"parameters": [answers.HARDWARE]}},
        ),
    )
    for path, endpoint, model, summary, more in described:
        router.add_api_route(
            ROOT + path, endpoint, response_model=model, responses=_ERRORS, summary=summary,
            tags=["recipes"], **more,
        )  # fmt: skip
    router.add_api_route(ROOT + "/{recipe_id}", pages_.recipe, include_in_schema=False, response_model=None)
    return router


def recipes_app(catalogue: Catalogue) -> FastAPI:
    """The catalogue alone, as ``tandem recipes serve`` runs it."""
    app = FastAPI(
        title="Tandem recipes", version=__version__, docs_url=None, redoc_url=None, telemetry=_NO_TELEMETRY
    )
    app.include_router(recipes_router(catalogue, home=None))
    app.add_api_route("/", lambda: RedirectResponse(ROOT), include_in_schema=False, response_model=None)
    return app


class _Pages:
    """HTML. Plain functions, so that FastAPI runs them beside its event loop."""

    def __init__(self, catalogue: Catalogue, respond: Responder) -> None:
        self._catalogue = catalogue
        self._respond = respond

    def drilldown(self, request: Request) -> Response:
        def answer() -> Response:
            query = self._respond.query(request)
            if query.aliased:
                return self._respond.redirect("", query)
            return self._respond.html(
                request,
                query.query_string(),
                "drilldown.html",
                lambda: pages.drilldown_values(self._catalogue, self._catalogue.drilldown(query)),
            )

        return self._respond.page(request, answer)

    def recipe(self, request: Request, recipe_id: str) -> Response:
        def answer() -> Response:
            hardware = _only_hardware(request)
            entry = self._catalogue.entry(recipe_id)
            key = f"{recipe_id}\0{hardware.text() if hardware else ''}"

            def values() -> dict[str, Any]:
                shown = pages.recipe_values(self._catalogue, entry, hardware)
                return shown | {"infobox": infobox(entry)}

            return self._respond.html(request, key, "recipe.html", values)

        return self._respond.page(request, answer)

    def models(self, request: Request) -> Response:
        def values() -> dict[str, Any]:
            counts = {
                value.id: value.count for value in self._catalogue.facet(Query(), "model", _ALL_VALUES).values
            }
            models = [(model, counts.get(model.id, 0)) for model in self._catalogue.models().values()]
            models.sort(key=lambda pair: (-pair[1], pair[0].name.casefold()))
            return {"here": "models", "models": models[:_LISTED_IDS], "kinds": pages.MODEL_KINDS}

        return self._respond.page(request, lambda: self._respond.html(request, "", "models.html", values))

    def compare(self, request: Request) -> Response:
        def answer() -> Response:
            ids = request.query_params.getlist("id")
            if len(ids) > 2:
                raise QueryError("id", f"two recipes can be compared, {len(ids)} were given")
            sides = [self._side(recipe_id) for recipe_id in ids]
            left, right = (*sides, None, None)[:2]

            def values() -> dict[str, Any]:
                lines = compare(left, right) if left is not None and right is not None else []
                grouped = [(name, list(held)) for name, held in groupby(lines, key=lambda line: line.section)]
                listed = dict.fromkeys([*ids, *self._catalogue.recipe_ids()[:_LISTED_IDS]])
                return {
                    "here": "compare",
                    "left": left,
                    "right": right,
                    "lines": grouped,
                    "ids": list(listed),
                }

            return self._respond.html(request, "\0".join(ids), "compare.html", values)

        return self._respond.page(request, answer)

    def _side(self, recipe_id: str) -> Side:
        entry = self._catalogue.entry(recipe_id)
        return Side(entry.recipe, entry.model, entry.standing)

    def scatter(self, request: Request) -> Response:
        def answer() -> Response:
            pairs = [(key, value) for key, value in request.query_params.multi_items() if key != "class"]
            wanted = request.query_params.get("class", "")
            query = self._catalogue.parse(pairs)
            values = self._scatter_values(query, wanted)
            return self._respond.html(
                request, f"{query.query_string()}\0{wanted}", "scatter.html", lambda: values
            )

        return self._respond.page(request, answer)

    def _scatter_values(self, query: Query, wanted: str) -> dict[str, Any]:
        """Raises QueryError for a kind of text that no number states."""
        base = replace(query, grain="recipe")
        facet = self._catalogue.facet(base, "decode.class", _ALL_VALUES)
        classes = [(value.id, value.count) for value in facet.values if not value.id.startswith("~")]
        if wanted and wanted not in dict(classes):
            raise QueryError("class", f"no number states {wanted!r}", ", ".join(name for name, _ in classes))
        chosen = wanted or (classes[0][0] if classes else "")
        held = base.filter_of("decode.class").any_of
        of_class = (
            base
            if any(term.text == chosen for term in held) or not chosen
            else base.toggled("decode.class", value_term(chosen))
        )
        points = scatter_points(self._catalogue.matching_recipes(of_class), chosen) if chosen else []
        ahead = query.query_string().removeprefix("?")
        return {
            "here": "scatter",
            "classes": classes,
            "chosen": chosen,
            "points": points,
            "filtered": bool(query.filters or query.search),
            "chart": scatter(points, ROOT) if points else "",
            "class_link": lambda name: "?" + "&".join(part for part in (ahead, f"class={name}") if part),
        }

    def static(self, name: str) -> Response:
        if name not in _STATIC_TYPES:
            return Response(status_code=404)
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable",
            "X-Content-Type-Options": "nosniff",
        }
        return FileResponse(pages.STATIC / name, media_type=_STATIC_TYPES[name], headers=headers)


class _Data:
    """JSON and files."""

    def __init__(self, catalogue: Catalogue, respond: Responder) -> None:
        self._catalogue = catalogue
        self._respond = respond

    def drilldown(self, request: Request) -> Response:
        def answer() -> Response:
            query = self._respond.query(request)
            if query.aliased:
                return self._respond.redirect(".json", query)

            def build() -> answers.DrilldownAnswer:
                found = self._catalogue.drilldown(query)
                version = self._catalogue.version
                return answers.drilldown_answer(self._catalogue, found, ROOT + ".json", version)

            return self._respond.json(request, query.query_string(), build)

        return self._respond.data(answer)

    def facet(self, request: Request, key: str) -> Response:
        def answer() -> Response:
            if key not in FACET_KEYS:
                raise UnknownFacetError(key)
            query = self._respond.query(request)
            view = self._catalogue.facet(query, key, _ALL_VALUES)
            return self._respond.json(
                request, f"{key}\0{query.query_string()}", lambda: answers.facet_answer(view, ROOT + ".json")
            )

        return self._respond.data(answer)

    def recipe(self, request: Request, recipe_id: str) -> Response:
        def answer() -> Response:
            hardware = _only_hardware(request)
            entry = self._catalogue.entry(recipe_id)

            def build() -> answers.RecipeAnswer:
                fits: dict[str, Any] = {}
                if hardware is not None:
                    for profile in entry.recipe.profiles:
                        fits[profile.name] = asdict(self._catalogue.fit(entry.recipe, profile, hardware))
                return answers.recipe_answer(entry, fits)

            key = f"{recipe_id}\0{hardware.text() if hardware else ''}"
            return self._respond.json(request, key, build)

        return self._respond.data(answer)

    def csv_wide(self, request: Request) -> Response:
        return self._export(request, "recipes.csv", "text/csv; charset=utf-8", export.csv_wide)

    def csv_long(self, request: Request) -> Response:
        return self._export(request, "recipes-numbers.csv", "text/csv; charset=utf-8", export.csv_long)

    def json_lines(self, request: Request) -> Response:
        return self._export(request, "recipes.jsonl", "application/jsonl", export.json_lines)

    def yaml(self, request: Request) -> Response:
        return self._export(request, "recipes.yaml", "application/yaml", export.yaml_documents)

    def _export(self, request: Request, name: str, media_type: str, write: Any) -> Response:
        def answer() -> Response:
            query = self._respond.query(request)
            parts: Iterator[str] = write(self._catalogue.matching_recipes(query))
            return self._respond.stream(request, query.query_string(), media_type, name, parts)

        return self._respond.data(answer)

    def recipe_yaml(self, request: Request, recipe_id: str) -> Response:
        def answer() -> Response:
            recipe = self._catalogue.entry(recipe_id).recipe
            return self._respond.text(
                request,
                f"yaml\0{recipe_id}",
                "application/yaml",
                lambda: "".join(export.yaml_documents([recipe])),
            )

        return self._respond.data(answer)

    def recipe_citation(self, request: Request, recipe_id: str) -> Response:
        def answer() -> Response:
            entry = self._catalogue.entry(recipe_id)
            return self._respond.text(
                request,
                f"cff\0{recipe_id}",
                "application/yaml",
                lambda: export.citation(entry.recipe, entry.model),
            )

        return self._respond.data(answer)


def _only_hardware(request: Request) -> Hardware | None:
    """The one parameter of a recipe's page. Raises QueryError for any other."""
    for key in request.query_params:
        if key != "hw":
            raise QueryError(key, "a recipe's page has no such parameter", "hw=2x64gib")
    text = request.query_params.get("hw", "")
    return parse_hardware(text) if text else None
