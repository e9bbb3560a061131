"""Models of the hub, ``org/name[@revision]``, through huggingface_hub and its shared cache.

The answer names the commit that was taken, whatever the revision asked for was.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tandem.core.errors import DownloadError, ModelNotFoundError, ModelUnsupportedError, TandemError
from tandem.core.progress import ProgressSink
from tandem.core.settings import Environment
from tandem.loader.download import free_bytes, require_disk

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII
)
DEFAULT_REVISION = "main"
_SIDE_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_PROGRESS_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class HubModel:
    repository: str
    revision: str
    """The commit."""
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.revision[:12]}"


@dataclass(frozen=True, slots=True)
class HubOptions:
    cache_dir: Path
    endpoint: str | None
    """None = huggingface_hub's own."""
    offline: bool
    progress: ProgressSink
    measure_free_bytes: Callable[[Path], int] = free_bytes

    @classmethod
    def from_environment(cls, environment: Environment, progress: ProgressSink) -> HubOptions:
        return cls(environment.hub_cache_dir, environment.hub_endpoint, environment.offline, progress)


def ensure_hub_model(repository: str, revision: str | None, options: HubOptions) -> HubModel:
    """The model's folder in the hub's cache, completed if needed; resumes what was cut.

    Raises ModelNotFoundError (repository, revision, or no weights there), ModelUnsupportedError (weights of
    another format) or DownloadError (offline, gated, no network, disk full).
    """
    wanted = revision or DEFAULT_REVISION
    if options.offline:
        return from_cache(repository, wanted, options, "offline mode is set", None)
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi(endpoint=options.endpoint)
    with reported_by_hub(repository, wanted, api):
        try:
            info = ask_hub(api, repository, wanted)
        except transport_error() as error:
            return from_cache(repository, wanted, options, unreachable(api), error)
        sizes = wanted_files(info, repository, wanted, api)
        blobs = options.cache_dir / f"models--{repository.replace('/', '--')}" / "blobs"
        missing = max(sum(sizes.values()) - _folder_bytes(blobs), 0)
        require_disk(options.cache_dir, missing, f"{repository}@{wanted}", options.measure_free_bytes)
        with _watched(options.progress, f"{repository}@{wanted}", blobs, sum(sizes.values())):
            folder = snapshot_download(
                repository,
                revision=wanted,
                cache_dir=options.cache_dir,
                endpoint=options.endpoint,
                allow_patterns=sorted(sizes),
                tqdm_class=_no_bar(),
            )
    return HubModel(repository, Path(folder).name, Path(folder))


def from_cache(
    repository: str, revision: str, options: HubOptions, why: str, cause: Exception | None
) -> HubModel:
    """What the cache holds. Raises DownloadError saying ``why`` nothing can be fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            cache_dir=options.cache_dir,
            local_files_only=True,
            # Which weights belong to the model is for its index to say, when the checkpoint is opened.
            allow_patterns=["config.json"],
            tqdm_class=_no_bar(),
        )
    except LocalEntryNotFoundError as error:
        partly = isinstance(error, IncompleteSnapshotError)
        raise DownloadError(
            f"{repository}@{revision} is not on this machine and {why}",
            found=("an unfinished download" if partly else f"nothing in {options.cache_dir}")
            + (f" and {_first_line(cause)}" if cause else ""),
            remedy=f"with a network: tandem models pull {repository}@{revision}"
            + (" (a mirror is named by HF_ENDPOINT)" if cause else ""),
        ) from (cause or error)
    return HubModel(repository, Path(folder).name, Path(folder))


def unreachable(api: HfApi) -> str:
    return f"the hub cannot be reached at {api.endpoint}"


def ask_hub(api: HfApi, repository: str, revision: str) -> ModelInfo:
    """Commit and files of a model. Raises the library's own errors; ModelNotFoundError for a name that can be
    none, DownloadError if what answers is no hub."""
    from huggingface_hub.errors import HFValidationError

    try:
        return api.model_info(repository, revision=revision, files_metadata=True)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{repository} is no name of the hub", found=_first_line(error), remedy="org/name[@revision]"
        ) from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise DownloadError(
            f"{api.endpoint} does not answer as a hub does",
            found=_first_line(error),
            remedy="check HF_ENDPOINT and the network: a login page or a proxy may answer in its place",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def wanted_files(info: ModelInfo, repository: str, revision: str, api: HfApi) -> dict[str, int]:
    """Bytes by file name: the weights and what stands beside them at the top of the repository."""
    sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
    top = {name: size for name, size in sizes.items() if "/" not in name}
    weights = {name for name in top if name.endswith(".safetensors")}
    # Some repositories hold the same weights twice, under the converter's own name too.
    weights = {name for name in weights if name.startswith("model")} or weights
    if not weights:
        raise _without_weights(sorted(sizes), repository, revision, api)
    side = {name for name in top if any(PurePosixPath(name).match(pattern) for pattern in _SIDE_FILES)}
    return {name: top[name] for name in weights | side}


def _without_weights(files: list[str], repository: str, revision: str, api: HfApi) -> TandemError:
    ggufs = [name for name in files if name.endswith(".gguf")]
    if ggufs:
        return ModelUnsupportedError(
            f"{repository}@{revision} holds GGUF files, not safetensors",
            found=", ".join(ggufs[:4]) + (" …" if len(ggufs) > 4 else ""),
            remedy="download one of them and pass its path to --model",
        )
    branches = [name for name in _branches(repository, api) if name != revision]
    return ModelNotFoundError(
        f"{repository}@{revision} holds no weights",
        found=f"{len(files)} files, no *.safetensors",
        remedy=f"--model {repository}@BRANCH with a branch of {', '.join(branches)}"
        if branches
        else "another repository",
    )


def _branches(repository: str, api: HfApi) -> list[str]:
    return [ref.name for ref in api.list_repo_refs(repository).branches]


@contextmanager
def reported_by_hub(repository: str, revision: str, api: HfApi) -> Iterator[None]:
    """Turn huggingface_hub's errors into ours."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    asked = f"{repository}@{revision}"
    try:
        yield
    except GatedRepoError as error:
        raise DownloadError(
            f"{repository} is gated: its authors ask you to accept terms first",
            found="no access with this token" if api.token else "no token",
            remedy="accept the terms on its page, then set HF_TOKEN or run `hf auth login`",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"The hub has no model {repository}",
            found="no such repository, or a private one",
            remedy="check the spelling; for a private one set HF_TOKEN",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"{repository} has no revision {revision}",
            found="branches " + ", ".join(_branches(repository, api)),
            remedy=f"--model {repository}@BRANCH",
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise DownloadError(
            f"{asked} cannot be downloaded",
            found=f"HTTP status {status} from the hub",
            remedy="try again later",
        ) from error
    except (transport_error(), LocalEntryNotFoundError) as error:
        raise DownloadError(
            f"The download of {asked} broke off",
            found=_first_line(error),
            remedy="run the command again to resume",
        ) from error
    except OSError as error:
        full = error.errno == errno.ENOSPC
        raise DownloadError(
            f"{asked} cannot be stored" if not full else f"The disk is full while downloading {asked}",
            found=_first_line(error),
            remedy="free some space and run the command again to resume" if full else "run the command again",
        ) from error


def transport_error() -> type[Exception]:
    """The network failures of huggingface_hub's HTTP client."""
    import httpx2

    return httpx2.TransportError


@contextmanager
def _watched(progress: ProgressSink, label: str, blobs: Path, total_bytes: int) -> Iterator[None]:
    """Report how the cache's folder grows, whichever way the library transfers."""
    before = min(_folder_bytes(blobs), total_bytes)
    done = threading.Event()
    progress.start(label, total_bytes, before)

    def watch() -> None:
        last = before
        while True:
            ended = done.wait(_PROGRESS_INTERVAL_S)
            now = _folder_bytes(blobs)
            progress.advance(max(now - last, 0))
            last = max(now, last)
            if ended:
                return

    watcher = threading.Thread(target=watch, name="hub-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        progress.finish()


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed while we looked
            continue
    return total


def _no_bar() -> Any:
    """huggingface_hub wants a tqdm class; this one draws nothing."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class NoBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    return NoBar
