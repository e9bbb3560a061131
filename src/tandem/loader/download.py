"""One file over HTTP: resumed where it was cut, verified, renamed into place last.

What has arrived lies in ``<target>.incomplete``; ``<target>`` exists only whole and verified.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tandem.core.errors import DownloadError, ModelDamagedError
from tandem.core.plan import format_bytes
from tandem.core.progress import ProgressSink

_TIMEOUT = httpx.Timeout(30.0, connect=15.0)
_BLOCK_BYTES = 1 << 20
_SPARE_DISK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file known beforehand: a download that differs in size or hash is refused."""

    url: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Give up after so many attempts in a row that brought no byte; pauses double from ``pause_s``."""

    attempts: int = 4
    pause_s: float = 1.0


DEFAULT_RETRY = Retry()


def open_client(ca_bundle: Path | None) -> httpx.Client:
    """A client that follows redirects and trusts ``ca_bundle`` where one is given."""
    if ca_bundle is None:
        return httpx.Client(timeout=_TIMEOUT, follow_redirects=True)
    try:
        context = ssl.create_default_context(cafile=str(ca_bundle))
    except OSError as error:
        raise DownloadError(
            f"The certificate bundle {ca_bundle} cannot be read",
            found=str(error),
            remedy="correct SSL_CERT_FILE, PIP_CERT or pip's `cert` setting",
        ) from error
    return httpx.Client(timeout=_TIMEOUT, follow_redirects=True, verify=context)


def download(
    client: httpx.Client,
    remote: RemoteFile,
    target: Path,
    progress: ProgressSink,
    retry: Retry,
) -> None:
    """Bring ``remote`` to ``target``; the caller holds a lock on it.

    Raises DownloadError (refused, cut too often, disk full; what arrived is kept) or ModelDamagedError
    (the content is not what is pinned; it is deleted).
    """
    partial = incomplete_path(target)
    resumed = partial.exists()
    _fetch_all(client, remote, partial, progress, retry)
    found = sha256_of(partial)
    if found != remote.sha256 and resumed:
        # What an earlier run left may be the damaged part: once more from the start.
        partial.unlink()
        _fetch_all(client, remote, partial, progress, retry)
        found = sha256_of(partial)
    if found != remote.sha256:
        partial.unlink()
        raise ModelDamagedError(
            f"The download of {target.name} is not the pinned file (SHA-256 {remote.sha256})",
            found=found,
            remedy="try again; if it repeats, a proxy or mirror changes the file",
        )
    partial.replace(target)


def incomplete_path(target: Path) -> Path:
    return target.with_name(target.name + ".incomplete")


def sha256_of(path: Path, progress: ProgressSink | None = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if progress is not None:
                progress.advance(len(block))
    return digest.hexdigest()


def free_bytes(folder: Path) -> int:
    """Free space where ``folder`` lies or will be made."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_disk(
    folder: Path, needed_bytes: int, what: str, measure: Callable[[Path], int] = free_bytes
) -> None:
    """Raise DownloadError, with the numbers, when ``folder`` has less room than needed."""
    free = measure(folder)
    needed_bytes += _SPARE_DISK_BYTES
    if free < needed_bytes:
        raise DownloadError(
            f"{what} needs {format_bytes(needed_bytes)} in {folder}",
            found=f"{format_bytes(free)} free",
            remedy="free some space or set TANDEM_CACHE_DIR to a larger disk",
        )


@contextmanager
def disk_full_reported(partial: Path) -> Iterator[None]:
    """Turn "no space left" while writing ``partial`` into a DownloadError with the numbers."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DownloadError(
            f"The disk is full while writing {partial.name.removesuffix('.incomplete')}",
            found=f"{_size(partial):,} bytes are kept in {partial.parent}",
            remedy="free some space and run the command again to resume",
        ) from error


def describe_failure(error: httpx.HTTPError) -> str:
    """A network failure in words; httpx leaves some messages empty."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _fetch_all(
    client: httpx.Client, remote: RemoteFile, partial: Path, progress: ProgressSink, retry: Retry
) -> None:
    have = _size(partial)
    if have > remote.size_bytes:
        partial.unlink()
        have = 0
    progress.start(partial.name.removesuffix(".incomplete"), remote.size_bytes, have)
    try:
        failures = 0
        while have < remote.size_bytes:
            failure = _fetch_once(client, remote, partial, have, progress)
            now = _size(partial)
            failures = 0 if now > have else failures + 1
            if now < remote.size_bytes and failures >= retry.attempts:
                raise DownloadError(
                    f"The download of {partial.name.removesuffix('.incomplete')} broke off",
                    found=f"{failure}; {now:,} of {remote.size_bytes:,} bytes are kept",
                    remedy="run the command again to resume",
                )
            if now < remote.size_bytes:
                time.sleep(retry.pause_s * 2 ** max(failures - 1, 0))
            have = now
    finally:
        progress.finish()


def _fetch_once(
    client: httpx.Client, remote: RemoteFile, partial: Path, have: int, progress: ProgressSink
) -> str:
    """One request, appended to ``partial``. Returns why it ended early; raises what retrying cannot mend."""
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with client.stream("GET", remote.url, headers=headers) as response:
            if response.status_code == 416:
                partial.unlink(missing_ok=True)
                return "the server refused to resume"
            if response.status_code >= 500 or response.status_code in (408, 429):
                return f"HTTP status {response.status_code}"
            if response.status_code not in (200, 206):
                raise DownloadError(
                    f"{partial.name.removesuffix('.incomplete')} cannot be downloaded",
                    found=f"HTTP status {response.status_code}",
                    remedy="try again later, or check the package index",
                )
            resumed = response.headers.get("content-range", "").startswith(f"bytes {have}-")
            append = response.status_code == 206 and resumed
            if have and not append:
                progress.start(partial.name.removesuffix(".incomplete"), remote.size_bytes, 0)
            _write(response, partial, "ab" if append else "wb", remote.size_bytes, progress)
    except httpx.HTTPError as error:
        return describe_failure(error)
    return "the server ended the answer early"


def _write(
    response: httpx.Response, partial: Path, mode: str, limit_bytes: int, progress: ProgressSink
) -> None:
    with disk_full_reported(partial), partial.open(mode) as file:
        written = file.tell()
        # As they arrive: with a block size of its own httpx would drop what it gathered when the line is cut.
        for block in response.iter_raw():
            kept = block[: limit_bytes - written]
            file.write(kept)
            written += len(kept)
            progress.advance(len(kept))
            if written == limit_bytes:
                break
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
