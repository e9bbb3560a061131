"""The models on this machine: the demo model's file and the hub's cache, listed, verified, removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError
from tandem.core.progress import ProgressSink
from tandem.core.settings import Environment
from tandem.loader.checkpoint import open_checkpoint
from tandem.loader.demo import DEMO_MODEL, models_dir
from tandem.loader.download import incomplete_path, sha256_of
from tandem.loader.hub import HUB_ID
from tandem.loader.resolve import DEMO_ARGUMENT, ModelLocation, resolve_model

_REPOSITORY_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")
_SHA256_NAME = re.compile(r"[0-9a-f]{64}")
_SHOWN_COMMIT_LENGTH = 12


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model, or one revision of a model of the hub."""

    name: str
    """As ``--model`` takes it; of the hub ``org/name@commit``."""
    kind: Literal["demo", "hub"]
    path: Path
    size_bytes: int
    state: Literal["complete", "unfinished", "damaged"]
    """By sizes and headers; ``verify_model`` looks at every byte."""
    refs: tuple[str, ...] = ()
    """Branches and tags of the hub that name this revision."""

    def answers_to(self, name: str) -> bool:
        repository, _, revision = name.partition("@")
        own, _, commit = self.name.partition("@")
        return repository == own and (not revision or revision in self.refs or commit.startswith(revision))

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "path": str(self.path)}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    files: int
    hashed_files: int
    """Files whose SHA-256 is known and was compared; the rest are small text files of the hub."""
    size_bytes: int


def list_stored(environment: Environment) -> list[StoredModel]:
    """Everything found in the two caches."""
    stored = list(_stored_demo(environment))
    if environment.hub_cache_dir.is_dir():
        for folder in sorted(environment.hub_cache_dir.iterdir()):
            match = _REPOSITORY_FOLDER.fullmatch(folder.name)
            if match and folder.is_dir():
                stored += _stored_revisions(folder, f"{match['owner']}/{match['name']}")
    return stored


def find_stored(name: str, environment: Environment) -> list[StoredModel]:
    """What ``name`` means on this machine: without a revision, every revision of a repository.

    Raises ModelNotFoundError.
    """
    everything = list_stored(environment)
    found = [model for model in everything if model.answers_to(name)]
    if not found:
        raise ModelNotFoundError(
            f"{name} is not on this machine",
            found=", ".join(model.name for model in everything) or "no models",
            remedy=f"tandem models pull {name}",
        )
    return found


def pull_model(name: str, environment: Environment, progress: ProgressSink) -> ModelLocation:
    """Download by name and check the headers. Raises as ``resolve_model`` and ``open_checkpoint`` do."""
    if name != DEMO_ARGUMENT and HUB_ID.fullmatch(name) is None:
        raise ModelNotFoundError(
            f"{name} cannot be pulled",
            found="neither `demo` nor a name of the hub",
            remedy="tandem models pull org/name[@revision]",
        )
    location = resolve_model(name, environment, progress)
    if location.kind == "folder":
        open_checkpoint(location.path)
    return location


def verify_model(name: str, environment: Environment, progress: ProgressSink) -> VerifyReport:
    """Hash every file whose SHA-256 is known. Raises ModelDamagedError naming the first that differs."""
    files: list[Path] = []
    expected: dict[Path, str] = {}
    for model in find_stored(name, environment):
        if model.kind == "demo":
            files.append(model.path)
            expected[model.path] = DEMO_MODEL.member_sha256
            continue
        open_checkpoint(model.path)
        for path in sorted(path for path in model.path.rglob("*") if path.is_file()):
            files.append(path)
            # The hub's cache names large files by their SHA-256.
            if _SHA256_NAME.fullmatch(path.resolve().name):
                expected[path] = path.resolve().name
    size_bytes = sum(path.stat().st_size for path in expected)
    progress.start(f"verifying {name}", size_bytes)
    try:
        for path, sha256 in expected.items():
            found = sha256_of(path, progress)
            if found != sha256:
                raise ModelDamagedError(
                    f"{path} is not the published file (SHA-256 {sha256})",
                    found=found,
                    remedy=f"tandem models remove {name}, then tandem models pull {name}",
                )
    finally:
        progress.finish()
    return VerifyReport(len(files), len(expected), size_bytes)


def remove_model(name: str, environment: Environment) -> int:
    """Delete what ``find_stored`` finds, unfinished downloads included; returns the bytes freed."""
    found = find_stored(name, environment)
    size_bytes = sum(model.size_bytes for model in found)
    if found[0].kind == "demo":
        for path in _demo_files(environment):
            path.unlink(missing_ok=True)
        return size_bytes
    repository = found[0].name.partition("@")[0]
    folder = _repository_folder(environment, repository)
    everything = _stored_revisions(folder, repository)
    if len(found) == len(everything):
        shutil.rmtree(folder)
        shutil.rmtree(environment.hub_cache_dir / ".locks" / folder.name, ignore_errors=True)
        return size_bytes
    from huggingface_hub import scan_cache_dir

    commits = [model.path.name for model in found]
    scan_cache_dir(environment.hub_cache_dir).delete_revisions(*commits).execute()
    return size_bytes


def _demo_files(environment: Environment) -> list[Path]:
    folder = models_dir(environment)
    model, wheel = folder / DEMO_MODEL.file_name, folder / DEMO_MODEL.wheel
    return [
        model,
        incomplete_path(model),
        wheel,
        incomplete_path(wheel),
        model.with_name(model.name + ".lock"),
    ]


def _stored_demo(environment: Environment) -> Iterator[StoredModel]:
    files = [path for path in _demo_files(environment) if path.exists() and path.suffix != ".lock"]
    if not files:
        return
    model = models_dir(environment) / DEMO_MODEL.file_name
    size_bytes = sum(path.stat().st_size for path in files)
    if not model.exists():
        yield StoredModel(DEMO_ARGUMENT, "demo", model, size_bytes, "unfinished")
        return
    whole = model.stat().st_size == DEMO_MODEL.member_bytes
    yield StoredModel(DEMO_ARGUMENT, "demo", model, size_bytes, "complete" if whole else "damaged")


def _repository_folder(environment: Environment, repository: str) -> Path:
    return environment.hub_cache_dir / f"models--{repository.replace('/', '--')}"


def _stored_revisions(folder: Path, repository: str) -> list[StoredModel]:
    snapshots = sorted(path for path in (folder / "snapshots").glob("*") if path.is_dir())
    if not snapshots:
        size_bytes = sum(path.stat().st_size for path in (folder / "blobs").glob("*"))
        return [StoredModel(repository, "hub", folder, size_bytes, "unfinished")]
    references = [path for path in (folder / "refs").rglob("*") if path.is_file()]
    commits = {str(path.relative_to(folder / "refs")): path.read_text().strip() for path in references}
    revisions = []
    for path in snapshots:
        named = tuple(name for name, commit in commits.items() if commit == path.name)
        size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        name = f"{repository}@{path.name[:_SHOWN_COMMIT_LENGTH]}"
        revisions.append(StoredModel(name, "hub", path, size_bytes, _checkpoint_state(path), named))
    return revisions


def _checkpoint_state(folder: Path) -> Literal["complete", "unfinished", "damaged"]:
    try:
        open_checkpoint(folder)
    except ModelDamagedError:
        return "damaged"
    except (ModelNotFoundError, ModelUnsupportedError):
        return "unfinished"
    return "complete"
