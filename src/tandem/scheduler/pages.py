"""The page pool: which of the physical pages are free, cached or live.

::

              take                     drop, not indexed
    free  ───────────►  live  ───────────────────────────►  free
                        ▲  │  drop, indexed
                   hold │  ▼
                       cached  ──── unindex ────►  free

A live page is held by one or more sequences; a cached page by nobody but the prefix index, which may give
it up at any time. free + cached + live = total, always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tandem.core.errors import EngineFault


class PagePool:
    """Reference counts of pages 0 … ``total_pages`` - 1. Knows nothing of tokens or of who holds what."""

    def __init__(self, total_pages: int) -> None:
        self.total_pages = total_pages
        self.cached_pages = 0
        self.live_pages = 0
        self._references = [0] * total_pages
        self._indexed = bytearray(total_pages)
        self._free = list(range(total_pages - 1, -1, -1))

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def references(self, page: int) -> int:
        """How many sequences hold ``page``."""
        return self._references[page]

    def is_indexed(self, page: int) -> bool:
        return bool(self._indexed[page])

    def take(self, count: int) -> tuple[int, ...]:
        """``count`` free pages, each now held once. The caller has made sure of ``free_pages``."""
        assert count <= len(self._free), f"{count} pages asked, {len(self._free)} free"
        pages = tuple(self._free.pop() for _ in range(count))
        for page in pages:
            self._references[page] = 1
        self.live_pages += count
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """One more holder for pages that are cached or live."""
        for page in pages:
            if self._references[page] == 0:
                assert self._indexed[page], f"page {page} is free and cannot be shared"
                self.cached_pages -= 1
                self.live_pages += 1
            self._references[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One holder fewer; pages nobody holds become cached if indexed, else free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is dropped but not held"
            self._references[page] -= 1
            if self._references[page] == 0:
                self.live_pages -= 1
                if self._indexed[page]:
                    self.cached_pages += 1
                else:
                    self._free.append(page)

    def index(self, pages: Iterable[int]) -> None:
        """The prefix index takes live pages in: they outlast their holders."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is indexed but not held"
            assert not self._indexed[page], f"page {page} is indexed twice"
            self._indexed[page] = 1

    def unindex(self, pages: Iterable[int]) -> None:
        """The prefix index gives pages up: those nobody holds are free."""
        for page in pages:
            assert self._indexed[page], f"page {page} is not indexed"
            self._indexed[page] = 0
            if self._references[page] == 0:
                self.cached_pages -= 1
                self._free.append(page)

    def check(self, held: Iterable[tuple[int, ...]]) -> None:
        """Conservation: recount everything from the holders' page tables.

        Raises EngineFault with both sides of the equation that does not hold.
        """
        parts = self.free_pages + self.cached_pages + self.live_pages
        if parts != self.total_pages:
            raise EngineFault(
                "Pages are lost or counted twice",
                found=f"free {self.free_pages} + cached {self.cached_pages} + live {self.live_pages} "
                f"= {parts}, total {self.total_pages}",
            )
        holders = Counter(page for table in held for page in table)
        free = set(self._free)
        for page, references in enumerate(self._references):
            if references != holders[page]:
                raise EngineFault(
                    f"Page {page} has the wrong number of holders",
                    found=f"counted {references}, in page tables {holders[page]}",
                )
            if (page in free) != (references == 0 and not self._indexed[page]):
                raise EngineFault(
                    f"Page {page} is in two places or in none",
                    found=f"free {page in free}, holders {references}, indexed {bool(self._indexed[page])}",
                )
        live = sum(1 for references in self._references if references)
        if live != self.live_pages or len(free) != self.free_pages:
            raise EngineFault(
                "Page counts disagree with the pages",
                found=f"live {self.live_pages} counted, {live} found; "
                f"free {self.free_pages} counted, {len(free)} found",
            )
