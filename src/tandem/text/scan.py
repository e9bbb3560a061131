"""Finding marker strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def find_first(text: str, markers: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """Place and text of the marker that is complete first; of several the longest. None if there is none.

    "Complete first" makes the answer the same whatever pieces the text came in.
    """
    best: tuple[int, str] | None = None
    for marker in markers:
        at = text.find(marker, start)
        if at < 0:
            continue
        if best is None or (at + len(marker), at) < (best[0] + len(best[1]), best[0]):
            best = (at, marker)
    return best


def held_suffix(text: str, markers: Sequence[str]) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of a marker: it may yet become one."""
    longest = max((len(marker) for marker in markers), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - length :]
        if any(len(marker) > length and marker.startswith(tail) for marker in markers):
            return length
    return 0


def may_begin(text: str, markers: Iterable[str]) -> bool:
    """``text`` is the beginning of a marker and could still become it (the empty text could)."""
    return any(len(marker) > len(text) and marker.startswith(text) for marker in markers)
