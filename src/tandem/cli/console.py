"""Where commands print: data to standard output, everything else to standard error."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from tandem.core.errors import SettingsError


def output() -> Console:
    return Console(highlight=False, soft_wrap=True)


def notices() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(data: object) -> None:
    """One JSON document on standard output, keys in the order given."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def make_folder(folder: Path) -> None:
    """Before work whose result goes there. Raises SettingsError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{folder} cannot be made", found=error.strerror, remedy="a folder that can be written to"
        ) from error


def write_json(path: Path, data: object) -> None:
    """The same document as a file. Raises SettingsError where it cannot be written."""
    try:
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written", found=error.strerror) from error
