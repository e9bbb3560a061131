"""What a damaged model file most likely is, told from its first bytes."""

from __future__ import annotations

from pathlib import Path

from tandem.core.errors import ModelDamagedError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def likely_cause(head: bytes) -> str | None:
    """Name the usual accident behind a file that starts with ``head``; None when nothing fits.

    A few hundred bytes are enough.
    """
    if not head:
        return "an empty file: the download never started"
    if head.startswith(_LFS_POINTER):
        return f"a Git LFS pointer, not the file itself{_lfs_size(head)}"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page saved in its place (a login page or an error of the server)"
    if not head.strip(b"\0"):
        return "zero bytes: space was reserved, but the content never arrived"
    if start.startswith(b'{"error"') or start.startswith(b"access to model"):
        return "an error message of the server saved in its place"
    return None


def read_head(path: Path, count_bytes: int = 512) -> bytes:
    with path.open("rb") as file:
        return file.read(count_bytes)


def remedy_for(head: bytes) -> str:
    """How to get the real file back."""
    if head.startswith(_LFS_POINTER):
        return "run `git lfs pull` in the folder, or download the file again"
    return "download the file again"


def cut_short(path: Path, expected_bytes: int, actual_bytes: int) -> ModelDamagedError:
    """The error for a file that ends before its header says it does."""
    return ModelDamagedError(
        f"{path} is cut short",
        found=f"{actual_bytes:,} bytes, expected {expected_bytes:,}: most likely an interrupted download",
        remedy="download the file again",
    )


def _lfs_size(head: bytes) -> str:
    for line in head.splitlines():
        if line.startswith(b"size ") and line[5:].isdigit():
            return f" (which has {int(line[5:]):,} bytes)"
    return ""
