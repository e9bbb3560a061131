"""Logging set-up: one line a record, to standard error, so that standard output stays data."""

from __future__ import annotations

import logging
import sys


def get_logger(room: str) -> logging.Logger:
    """The logger of a room, e.g. ``get_logger("engine")`` is ``tandem.engine``."""
    return logging.getLogger(f"tandem.{room}")


def configure_logging(level: str) -> None:
    """Send Tandem's records of ``level`` and above to standard error. Called once, by the CLI."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger("tandem")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
