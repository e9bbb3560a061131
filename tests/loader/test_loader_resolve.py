"""What ``--model`` may be, and what it says when it is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import ModelNotFoundError, ModelUnsupportedError, UserError
from tandem.core.progress import Silent
from tandem.core.settings import Environment, read_environment
from tandem.loader.resolve import ModelLocation, resolve_model


@pytest.fixture
def offline(tmp_path: Path) -> Environment:
    return read_environment({"HOME": str(tmp_path), "TANDEM_OFFLINE": "1", "PIP_CONFIG_FILE": "/dev/null"})


def resolve(argument: str | None, environment: Environment) -> ModelLocation:
    return resolve_model(argument, environment, Silent())


def test_a_folder_with_a_config(tmp_path: Path, offline: Environment) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    location = resolve(str(folder), offline)
    assert (location.kind, location.path, location.name) == ("folder", folder, "My-Model")


def test_a_gguf_file(tmp_path: Path, offline: Environment) -> None:
    path = tmp_path / "tiny.Q4_0.gguf"
    path.write_bytes(b"GGUF")
    location = resolve(str(path), offline)
    assert (location.kind, location.path, location.name) == ("gguf", path, "tiny.Q4_0")


@pytest.mark.parametrize("argument", [None, "demo"])
def test_nothing_and_demo_mean_the_demo_model(argument: str | None, offline: Environment) -> None:
    with pytest.raises(UserError, match="The demo model SmolLM2-135M-Instruct is not on this machine"):
        resolve(argument, offline)


def test_a_hub_name_goes_to_the_hub(offline: Environment) -> None:
    with pytest.raises(UserError, match=r"org/name@4\.05bpw is not on this machine and offline mode is set"):
        resolve("org/name@4.05bpw", offline)


def test_a_path_wins_over_a_hub_name(
    tmp_path: Path, offline: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert resolve("org/name", offline).kind == "folder"


def test_a_misspelt_path_names_its_neighbour(tmp_path: Path, offline: Environment) -> None:
    (tmp_path / "GLM-5.3-Flash").mkdir()
    with pytest.raises(ModelNotFoundError, match=r"no model at .*GLM-5\.3-Flahs.*--model .*GLM-5\.3-Flash"):
        resolve(str(tmp_path / "GLM-5.3-Flahs"), offline)


@pytest.mark.parametrize(
    "argument",
    ["/nowhere/at/all", "./nowhere", "~/nowhere", "nowhere", "a/b/c", "org/model.gguf", "", "x y", "../"],
)
def test_what_is_neither_path_nor_name_is_one_line(argument: str, offline: Environment) -> None:
    with pytest.raises(UserError) as caught:
        resolve(argument, offline)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_folders_and_files_that_are_no_model(tmp_path: Path, offline: Environment) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json; found: 0 entries"):
        resolve(str(tmp_path), offline)
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"found: a\.gguf; try: --model .*a\.gguf"):
        resolve(str(tmp_path), offline)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(b"")
    with pytest.raises(ModelUnsupportedError, match=r"one file of a model.*--model " + str(tmp_path)):
        resolve(str(shard), offline)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelUnsupportedError, match=r"notes\.txt is not a model"):
        resolve(str(tmp_path / "notes.txt"), offline)
