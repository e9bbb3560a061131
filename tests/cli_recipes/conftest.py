"""Run ``tandem recipes`` in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tandem.cli.main import run


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def recipes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> Ran:
        code = run(("recipes", *arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
