"""``tandem recipes ls | facets | show | diff | export | serve``: reading the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.console import notices, output, print_json
from tandem.cli.flags import JsonFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tandem.recipes.catalogue import Catalogue

Filters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILTER]...",
        help="As in the page's address: `cards=2..4`, `kv=q8`, `unlock=~none`, `tested_by.not=alice`.",
        show_default=False,
    ),
]
RecipeId = Annotated[str, typer.Argument(metavar="ID", help="A recipe's id.", show_default=False)]
SearchFlag = Annotated[str | None, typer.Option("--q", help="Words in titles, names, flags and issues.")]
HardwareFlag = Annotated[str | None, typer.Option("--hw", help="Your cards: `2x64GiB`, `64GiB,48GiB`.")]


def open_catalogue() -> Catalogue:
    """The shipped recipes and the user's, judged by the planner."""
    from tandem.api.fit import PlannerFit
    from tandem.core.settings import read_environment
    from tandem.recipes.catalogue import Catalogue

    return Catalogue(read_environment().data_dir, calculator=PlannerFit())


def query_pairs(filters: list[str] | None, **options: object) -> list[tuple[str, str]]:
    """URL parameters from ``key=value`` arguments and options that were given. Raises QueryError."""
    from tandem.recipes.query_error import QueryError

    pairs = []
    for text in filters or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise QueryError(text, "a filter is KEY=VALUE", f"{text}=~none, or --q {text}")
        pairs.append((key, value))
    return pairs + [(key, str(value)) for key, value in options.items() if value is not None]


def list_recipes(
    filters: Filters = None,
    q: SearchFlag = None,
    hw: HardwareFlag = None,
    sort: Annotated[
        str | None, typer.Option("--sort", help="A facet, or `title`; `-` before it reverses.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Rows to list.", show_default="100")] = None,
    grain: Annotated[
        str | None, typer.Option("--grain", help="One row for each recipe, profile or measurement.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List the recipes that match all filters; values of one key are alternatives.

    `tandem recipes ls cards=2 cards=3 kv=q8 --sort -decode_tps`

    `tandem recipes ls fits=fits --hw 2x64GiB --json`
    """
    from tandem.cli.recipes_print import print_listing

    catalogue = open_catalogue()
    query = catalogue.parse(query_pairs(filters, q=q, hw=hw, sort=sort, limit=limit, grain=grain))
    found = catalogue.drilldown(query)
    if json:
        from tandem.server.recipes_web.answers import drilldown_answer
        from tandem.server.recipes_web.respond import ROOT

        answer = drilldown_answer(catalogue, found, ROOT + ".json", catalogue.version)
        print_json(answer.model_dump(mode="json"))
        return
    for problem in catalogue.problems():
        notices().print(f"left out: {problem}", markup=False)
    print_listing(output(), query, catalogue.rows(query, found.rows), found.total)


def facets(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The facet to list; without it, their names.")
    ] = None,
    filters: Filters = None,
    q: SearchFlag = None,
    hw: HardwareFlag = None,
    json: JsonFlag = False,
) -> None:
    """Show how many recipes have each value of a facet, its own filter aside.

    `tandem recipes facets engine cards=2`
    """
    from tandem.cli.recipes_print import print_facet, print_facet_names
    from tandem.recipes.facets import facets_of

    if key is None:
        print_facet_names(output(), facets_of("recipe"))
        return
    catalogue = open_catalogue()
    view = catalogue.facet(catalogue.parse(query_pairs(filters, q=q, hw=hw)), key, limit=10_000)
    if json:
        from tandem.server.recipes_web.answers import facet_answer
        from tandem.server.recipes_web.respond import ROOT

        print_json(facet_answer(view, ROOT + ".json").model_dump(mode="json"))
        return
    print_facet(output(), view)


def show(
    recipe_id: RecipeId,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Print this profile as a complete configuration.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Print what its status rests on, and every source.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show one recipe: its facts, profiles, numbers and issues.

    `tandem recipes show glm53-flash-2x64-layer-split --evidence`

    `tandem recipes show glm53-flash-2x64-layer-split --profile q8_384k`
    """
    from tandem.cli.recipes_print import print_recipe

    entry = open_catalogue().entry(recipe_id)
    if profile is not None:
        from tandem.core.settings import read_serve_variables
        from tandem.recipes.configuration import resolve

        configuration = resolve(entry.recipe, profile, environment=read_serve_variables())
        if json:
            print_json(configuration.as_dict())
        else:
            print("\n".join(configuration.lines()))
        return
    if json:
        from tandem.server.recipes_web.answers import recipe_answer

        print_json(recipe_answer(entry, {}).model_dump(mode="json"))
        return
    print_recipe(output(), entry, evidence)


def difference(
    left: RecipeId,
    right: Annotated[str, typer.Argument(metavar="ID", help="The other recipe's id.", show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help="Print what is the same, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Compare two recipes, field by field.

    `tandem recipes diff glm53-flash-2x64-layer-split glm53-flash-2x64-tp2`
    """
    from tandem.cli.recipes_print import print_difference
    from tandem.recipes.compare import Side, compare

    catalogue = open_catalogue()
    sides = [Side(e.recipe, e.model, e.standing) for e in (catalogue.entry(left), catalogue.entry(right))]
    lines = [line for line in compare(*sides) if everything or not line.same]
    if json:
        print_json([{"section": x.section, "label": x.label, left: x.left, right: x.right} for x in lines])
        return
    print_difference(output(), lines, left, right)


def export(
    filters: Filters = None,
    form: Annotated[
        str, typer.Option("--format", help="`csv`, `csv-numbers`, `jsonl`, `yaml` or `cff`.")
    ] = "jsonl",
    q: SearchFlag = None,
    hw: HardwareFlag = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file instead of standard output.")
    ] = None,
) -> None:
    """Write the matching recipes for other programs.

    `tandem recipes export --format csv-numbers model=glm-5.3-flash > numbers.csv`
    """
    import sys

    from tandem.core.errors import SettingsError
    from tandem.recipes import export as write
    from tandem.recipes.userdata import write_file

    catalogue = open_catalogue()
    query = catalogue.parse(query_pairs(filters, q=q, hw=hw))
    recipes = catalogue.matching_recipes(query)
    models = catalogue.models()
    writers: dict[str, Callable[[], Iterable[str]]] = {
        "csv": lambda: write.csv_wide(recipes),
        "csv-numbers": lambda: write.csv_long(recipes),
        "jsonl": lambda: write.json_lines(recipes),
        "yaml": lambda: write.yaml_documents(recipes),
        "cff": lambda: write.citations(recipes, models),
    }
    if form not in writers:
        raise SettingsError(f"No format {form!r}", remedy=", ".join(writers))
    if out is not None:
        write_file(out, "".join(writers[form]()))
        return
    for part in writers[form]():
        sys.stdout.write(part)


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 = any free port.")] = 8013,
) -> None:
    """Serve the catalogue's pages alone, without a model.

    `tandem recipes serve --port 8013`
    """
    import uvicorn

    from tandem.server.auth import HostMiddleware, needs_host_check
    from tandem.server.config import ServerConfig
    from tandem.server.recipes_web.routes import recipes_app
    from tandem.server.run import bind, server_url

    # The pages only read, and hold nothing that needs a key.
    config = ServerConfig(host=host, port=port, insecure=True)
    listener = bind(config)
    application = recipes_app(open_catalogue())
    if needs_host_check(config):
        application.add_middleware(HostMiddleware, allowed_hosts=(), count=lambda error: None)
    notices().print(f"Recipes at {server_url(listener)}/recipes", markup=False)
    server = uvicorn.Server(
        uvicorn.Config(application, log_config=None, access_log=False, server_header=False)
    )
    server.run(sockets=[listener])
