"""``tandem models``: what lies on this machine, and pulling, verifying and removing it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from tandem.cli.console import notices, output, print_json
from tandem.cli.flags import JsonFlag
from tandem.core.errors import SettingsError
from tandem.core.plan import format_bytes

app = typer.Typer(
    help="List, pull, verify and remove models.\n\n"
    "`tandem models` lists them.\n\n`tandem models pull demo`\n\n`tandem models pull org/name@branch`\n\n"
    "`tandem models verify demo`",
    invoke_without_command=True,
)

ModelName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="`demo`, or `org/name[@revision]` of the hub.", show_default=False),
]


@app.callback()
def _list_by_default(context: typer.Context, json: JsonFlag = False) -> None:
    if context.invoked_subcommand is None:
        list_models(json)
    elif json:
        raise SettingsError(
            "--json belongs behind the command", remedy=f"tandem models {context.invoked_subcommand} --json"
        )


@app.command("list")
def list_models(json: JsonFlag = False) -> None:
    """List the models on this machine.

    `tandem models list --json | jq '.[].name'`
    """
    from tandem.core.settings import read_environment
    from tandem.loader.store import list_stored

    environment = read_environment()
    stored = list_stored(environment)
    if json:
        print_json([model.as_dict() for model in stored])
        return
    if not stored:
        notices().print(
            f"No models in {environment.cache_dir} or {environment.hub_cache_dir}; "
            "`tandem models pull demo` brings one.",
            markup=False,
        )
        return
    table = Table(box=None, header_style="bold")
    for column, justify in (
        ("name", "left"),
        ("kind", "left"),
        ("size", "right"),
        ("state", "left"),
        ("path", "left"),
    ):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for model in stored:
        table.add_row(model.name, model.kind, format_bytes(model.size_bytes), model.state, str(model.path))
    output().print(table)


@app.command()
def pull(name: ModelName) -> None:
    """Download a model, or finish a download that was cut, and verify it.

    `tandem models pull demo`

    `tandem models pull org/name@4.05bpw`
    """
    from tandem.cli.progress import progress_for
    from tandem.core.settings import read_environment
    from tandem.loader.store import pull_model

    location = pull_model(name, read_environment(), progress_for(notices()))
    notices().print(f"{location.name} ({location.origin}) is ready:", markup=False)
    print(location.path)


@app.command()
def verify(name: ModelName) -> None:
    """Read every byte of a model and compare it with its SHA-256 (exit code 2 if anything differs).

    `tandem models verify demo`
    """
    from tandem.cli.progress import progress_for
    from tandem.core.settings import read_environment
    from tandem.loader.store import verify_model

    report = verify_model(name, read_environment(), progress_for(notices()))
    output().print(
        f"{name}: {report.hashed_files} of {report.files} files match their SHA-256, "
        f"{format_bytes(report.size_bytes)}; the weights' headers are whole",
        markup=False,
    )


@app.command()
def remove(
    name: ModelName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model from this machine, unfinished downloads included.

    `tandem models remove org/name --yes`
    """
    from tandem.core.settings import read_environment
    from tandem.loader.store import find_stored, remove_model

    environment = read_environment()
    stored = find_stored(name, environment)
    size = format_bytes(sum(model.size_bytes for model in stored))
    if not yes:
        typer.confirm(f"Delete {', '.join(model.name for model in stored)} ({size})?", abort=True, err=True)
    remove_model(name, environment)
    notices().print(f"Removed {name}, {size} freed.", markup=False)
