"""``tandem models`` on the user's folders."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from cli_outcome import Tandem

from tandem.loader.demo import DEMO_MODEL


@pytest.fixture
def models_folder() -> Path:
    folder = Path(os.environ["TANDEM_CACHE_DIR"]) / "models"
    folder.mkdir(parents=True)
    return folder


def test_an_empty_machine(tandem: Tandem) -> None:
    assert json.loads(tandem("models", "list", "--json").out) == []
    outcome = tandem("models", "list")
    assert outcome.out == ""
    assert "tandem models pull demo" in outcome.err


def test_an_unfinished_download_is_listed_and_removed(tandem: Tandem, models_folder: Path) -> None:
    (models_folder / (DEMO_MODEL.wheel + ".incomplete")).write_bytes(b"x" * 2048)
    [model] = json.loads(tandem("models", "list", "--json").out)
    assert (model["name"], model["state"], model["size_bytes"]) == ("demo", "unfinished", 2048)
    listed = tandem("models", "list").out
    header, row = (line.split() for line in listed.splitlines()[:2])
    assert header == ["name", "kind", "size", "state", "path"]
    assert row[:5] == ["demo", "demo", "2.00", "KiB", "unfinished"]
    assert tandem("models").out == listed
    assert json.loads(tandem("models", "--json").out) == [model]
    outcome = tandem("models", "remove", "demo", "--yes")
    assert (outcome.code, outcome.err) == (0, "Removed demo, 2.00 KiB freed.\n")
    assert list(models_folder.iterdir()) == []


def test_a_damaged_model_is_listed_and_fails_to_verify(tandem: Tandem, models_folder: Path) -> None:
    (models_folder / DEMO_MODEL.file_name).write_bytes(b"GGUF, but short")
    [model] = json.loads(tandem("models", "list", "--json").out)
    assert model["state"] == "damaged"
    outcome = tandem("models", "verify", "demo")
    assert outcome.code == 2
    assert "is not the published file" in outcome.err


@pytest.mark.parametrize(("answer", "code", "kept"), [("n\n", 130, True), ("y\n", 0, False)])
def test_removing_asks_first(
    tandem: Tandem, models_folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, kept: bool
) -> None:
    path = models_folder / DEMO_MODEL.file_name
    path.write_bytes(b"x")
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert tandem("models", "remove", "demo").code == code
    assert path.exists() == kept


def test_pulling_offline_is_one_line(tandem: Tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_OFFLINE", "1")
    outcome = tandem("models", "pull", "demo")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)


@pytest.mark.demo
def test_the_demo_model_verifies(tandem: Tandem, models_folder: Path, demo_gguf: Path) -> None:
    (models_folder / DEMO_MODEL.file_name).symlink_to(demo_gguf)
    assert tandem("models", "pull", "demo").out == f"{models_folder / DEMO_MODEL.file_name}\n"
    assert "1 of 1 files match their SHA-256" in tandem("models", "verify", "demo").out
