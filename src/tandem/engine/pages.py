"""Which part of a slot's page table has changed since it was last sent to the stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """Entries [first, first + len(pages)) of the slot's page table."""

    slot: int
    first: int
    pages: tuple[int, ...]


class PageTableTracker:
    """Remembers the table last sent for each slot.

    The scheduler passes the same tuple while nothing changed and a longer one when a sequence grows, so
    the common cases cost one identity check or one tuple comparison.
    """

    def __init__(self, max_slots: int) -> None:
        self._sent: list[tuple[int, ...]] = [()] * max_slots

    def forget(self, slot: int) -> None:
        self._sent[slot] = ()

    def changes(self, slot: int, pages: tuple[int, ...]) -> PageUpdate | None:
        """What the stages must write so that their table of ``slot`` is ``pages``."""
        sent = self._sent[slot]
        if pages is sent:
            return None
        self._sent[slot] = pages
        first = len(sent) if pages[: len(sent)] == sent else 0
        return PageUpdate(slot, first, pages[first:]) if first < len(pages) else None
