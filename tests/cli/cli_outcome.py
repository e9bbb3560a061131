"""What a command did, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Tandem = Callable[..., Outcome]
"""``tandem("generate", "hi", "--url", url)``"""
