"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_outcome import Outcome, Tandem
from fake_api import FakeApi, fake_api

from tandem.cli.main import run


@pytest.fixture
def tandem(capsys: pytest.CaptureFixture[str]) -> Tandem:
    """Run a command in this process."""

    def call(*arguments: str) -> Outcome:
        code = run(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as fake:
        yield fake
