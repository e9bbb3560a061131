"""Entry point: the list of commands, and how errors end."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

import tandem
from tandem.cli import bench, chat, doctor, generate, models, plan, recipes, rehearse, serve
from tandem.cli.entry import EXIT_INTERRUPTED
from tandem.core.errors import TandemError

EXIT_BROKEN_PIPE = 1
"""As typer and rich end when they meet one."""

app = typer.Typer(
    name="tandem",
    help="Serve very large mixture-of-experts models from the memory of two ordinary cards.\n\n"
    "`tandem serve` with no flag serves a small demo model; `tandem chat` talks to it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("generate")(generate.generate)
app.command("bench")(bench.bench)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("rehearse")(rehearse.rehearse)
app.add_typer(models.app, name="models")
app.add_typer(recipes.app, name="recipes")


@dataclass(slots=True)
class Invocation:
    """What the options before the command say."""

    debug: bool = False


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tandem {tandem.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    context.obj.debug = debug


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; nothing is raised but SystemExit from within."""
    invocation = Invocation()
    try:
        result = app(list(arguments), standalone_mode=False, obj=invocation, prog_name="tandem")
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except typer.Abort:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except typer.TyperException as error:
        return _fail(error.format_message().strip(), error, invocation.debug, 2)
    except TandemError as error:
        return _fail(str(error), error, invocation.debug, error.exit_code)
    except Exception as error:
        message = f"unexpected {type(error).__name__}: {error}"
        if not invocation.debug:
            message += "\ntandem: run `tandem --debug …` again for the traceback"
        return _fail(message, error, invocation.debug, 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, error: BaseException, debug: bool, exit_code: int) -> int:
    if debug:
        traceback.print_exception(error)
    if message:  # empty where help was printed because nothing was asked
        print(f"tandem: {message}", file=sys.stderr)
    return exit_code
