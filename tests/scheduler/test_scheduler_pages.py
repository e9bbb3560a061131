"""The page pool: states of a page, and what the conservation check says when the books are wrong."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.core.errors import EngineFault
from tandem.scheduler.pages import PagePool

TOTAL = 9


class PagePoolMachine(RuleBasedStateMachine):
    """Any order of legal calls, against a plain list of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(TOTAL)
        self.tables: list[tuple[int, ...]] = []
        self.indexed: set[int] = set()

    @property
    def held(self) -> set[int]:
        return {page for table in self.tables for page in table}

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count <= self.pool.free_pages:
            pages = self.pool.take(count)
            assert not set(pages) & (self.held | self.indexed)
            self.tables.append(pages)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        self.pool.drop(self.tables.pop(which % len(self.tables)))

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0, 99))
    def index(self, which: int) -> None:
        pages = [page for page in self.tables[which % len(self.tables)] if page not in self.indexed]
        self.pool.index(pages)
        self.indexed |= set(pages)

    @precondition(lambda self: self.indexed)
    @rule(which=st.integers(0, 99))
    def hold(self, which: int) -> None:
        pages = (sorted(self.indexed)[which % len(self.indexed)],)
        self.pool.hold(pages)
        self.tables.append(pages)

    @precondition(lambda self: self.indexed)
    @rule(which=st.integers(0, 99))
    def unindex(self, which: int) -> None:
        page = sorted(self.indexed)[which % len(self.indexed)]
        self.pool.unindex((page,))
        self.indexed.remove(page)

    @invariant()
    def conserved(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.live_pages == len(self.held)
        assert self.pool.cached_pages == len(self.indexed - self.held)
        assert self.pool.free_pages == TOTAL - len(self.held | self.indexed)


TestPagePool = PagePoolMachine.TestCase
TestPagePool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


def test_check_prints_both_sides() -> None:
    pool = PagePool(4)
    pool.take(1)
    pool.live_pages = 0
    with pytest.raises(EngineFault, match=r"free 3 \+ cached 0 \+ live 0 = 3, total 4"):
        pool.check([(3,)])


def test_check_finds_a_page_whose_holder_is_gone() -> None:
    pool = PagePool(4)
    (page,) = pool.take(1)
    with pytest.raises(EngineFault, match="counted 1, in page tables 0"):
        pool.check([])
    with pytest.raises(EngineFault, match="counted 1, in page tables 2"):
        pool.check([(page,), (page,)])


def test_misuse_is_caught_at_once() -> None:
    pool = PagePool(4)
    with pytest.raises(AssertionError, match="5 pages asked, 4 free"):
        pool.take(5)
    with pytest.raises(AssertionError, match="not held"):
        pool.drop((0,))
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.hold((0,))
