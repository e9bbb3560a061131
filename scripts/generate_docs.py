#!/usr/bin/env python3
"""Write docs/cli.md and docs/settings.md from the code; a test fails when they are stale.

.venv/bin/python scripts/generate_docs.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from tandem.cli.main import app
from tandem.core.options import LoadOptions
from tandem.core.settings import VARIABLES
from tandem.server.config import ServerConfig

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "<!-- Made by scripts/generate_docs.py; edit the code, not this page. -->\n"


def pages() -> dict[Path, str]:
    """The generated pages by path."""
    return {ROOT / "docs" / "cli.md": cli_page(), ROOT / "docs" / "settings.md": settings_page()}


def cli_page() -> str:
    root = get_command(app)
    parts = [
        "# Commands\n",
        NOTICE,
        "A mistake of yours ends in one line and exit code 2, an unexpected error in exit code 1 "
        "(`tandem --debug …` shows the traceback), Ctrl-C in 130.\n",
        *_option_tables(root),
    ]
    for path, command in _commands(root, ("tandem",)):
        parts.append(f"## {' '.join(path)}\n")
        parts.append(_paragraphs(command.help or ""))
        parts += _option_tables(command)
    return "\n".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _option_tables(command: Any) -> Iterator[str]:
    """One table for each panel of options, in the order of the help text."""
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        if parameter.param_type_name == "argument":
            names = f"`{(parameter.metavar or parameter.name).upper()}`"
        if names.startswith(("`--install-completion", "`--show-completion", "`--help", "`--version")):
            continue
        panel = parameter.rich_help_panel or "Options"
        text = " ".join((parameter.help or "").split())
        panels.setdefault(panel, []).append(_row(names, text, _default(parameter)))
    for panel, rows in panels.items():
        yield f"{panel}:\n"
        yield "| option | meaning | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    if parameter.default is None or parameter.default is False or shown is False:
        return ""
    return f"`{parameter.default}`"


def _paragraphs(text: str) -> str:
    """A docstring with its examples gathered in one block."""
    prose, examples = [], []
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        line = " ".join(paragraph.split())
        if line.startswith("`") and line.endswith("`") and line.count("`") == 2:
            examples.append(line.strip("`"))
        else:
            prose.append(line)
    blocks = [paragraph + "\n" for paragraph in prose]
    if examples:
        blocks.append("```sh\n" + "\n".join(examples) + "\n```\n")
    return "\n".join(blocks)


def settings_page() -> str:
    variables = [_row(f"`{name}`", text) for name, text in VARIABLES.items()]
    return "\n".join(
        [
            "# Settings\n",
            NOTICE,
            "Precedence: built-in default < recipe < profile < settings file < environment < flag. "
            "`tandem serve` prints every value with its source.\n",
            "## Environment variables\n",
            "| variable | meaning |\n|---|---|\n" + "\n".join(variables) + "\n",
            "## Loading a model\n",
            _field_table(LoadOptions),
            "## Serving it\n",
            _field_table(ServerConfig),
        ]
    )


def _field_table(kind: type) -> str:
    """The dataclass's fields with their defaults and the strings written below them."""
    documented = _attribute_docs(kind)
    rows = []
    for field in dataclasses.fields(kind):
        default = repr(field.default) if field.name != "cards" else "one CPU card, all free memory"
        rows.append(_row(f"`{field.name}`", documented.get(field.name, ""), f"`{default}`"))
    return "| setting | meaning | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _attribute_docs(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            documented[field.target.id] = " ".join(str(below.value.value).replace("``", "`").split())
    return documented


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
