"""The prefix index: a radix tree over chunks of tokens whose pages can be shared.

::

    root ── chunk 0 of "You are a helpful…" ── chunk 1 ── chunk 2      (a conversation)
                                         └──── chunk 1'                (another that branched off)

A node is one full chunk of ``chunk_tokens`` tokens. An exact one was computed by PREFILL on exact ones, so
its pages depend on the tokens of the path alone; an approximate one was computed by ROWS, wholly or in part,
or on approximate ones. Exact nodes thus hang on exact ones. Whoever holds a node's pages holds those of every
ancestor; hence the nodes that nobody holds hang at the ends of the tree, and taking leaves away frees all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.scheduler.pages import PagePool


class Node:
    """One published chunk. ``depth`` is its end in chunks from the first token; the root has 0."""

    __slots__ = (
        "approximate",
        "attached",
        "checkpoint",
        "children",
        "depth",
        "key",
        "pages",
        "parent",
        "used",
    )

    def __init__(
        self, parent: Node | None, key: tuple[int, ...], pages: tuple[int, ...], *, approximate: bool
    ) -> None:
        self.parent = parent
        self.approximate = approximate
        self.key = key
        self.pages = pages
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[tuple[int, ...], Node] = {}
        self.used = 0
        self.attached = True
        self.checkpoint: int | None = None
        """Number of the recurrent-state checkpoint taken at this node's end."""


class PrefixIndex:
    """Finds, publishes and gives up shared chunks. ``on_remove`` hears of every node that leaves."""

    def __init__(self, pool: PagePool, chunk_tokens: int, on_remove: Callable[[Node], None]) -> None:
        self.root = Node(None, (), (), approximate=False)
        self._pool = pool
        self._chunk_tokens = chunk_tokens
        self._on_remove = on_remove
        self._leaves: set[Node] = set()
        self._clock = 0

    def walk(self, node: Node, tokens: Sequence[int], end_depth: int) -> list[Node]:
        """The published chunks of ``tokens`` that follow ``node``, in order, down to ``end_depth``."""
        path: list[Node] = []
        while node.depth < end_depth:
            child = node.children.get(self.chunk(tokens, node.depth))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def chunk(self, tokens: Sequence[int], depth: int) -> tuple[int, ...]:
        """Tokens of the chunk that starts at ``depth`` chunks."""
        return tuple(tokens[depth * self._chunk_tokens : (depth + 1) * self._chunk_tokens])

    def publish(
        self, parent: Node, key: tuple[int, ...], pages: tuple[int, ...], *, approximate: bool
    ) -> Node:
        """The node of chunk ``key`` after ``parent``: the one that is there already, or a new one that
        takes in ``pages``, which the caller holds. An exact chunk takes the place of an approximate one,
        and what was built on that goes with it."""
        node = parent.children.get(key)
        if node is not None and node.approximate and not approximate:
            self._remove_branch(node)
            node = None
        if node is None:
            assert approximate or not parent.approximate, "an exact chunk on an approximate one"
            node = Node(parent, key, pages, approximate=approximate)
            self._pool.index(pages)
            parent.children[key] = node
            self._leaves.discard(parent)
            self._leaves.add(node)
        self.touch(node)
        return node

    def touch(self, node: Node) -> None:
        """``node`` and its ancestors were used just now."""
        self._clock += 1
        step: Node | None = node
        while step is not None:
            step.used = self._clock
            step = step.parent

    def evict_leaf(self) -> bool:
        """Give up the least recently used leaf that nobody holds; False if there is none."""
        idle = (leaf for leaf in self._leaves if self._pool.references(leaf.pages[0]) == 0)
        victim = min(idle, key=lambda leaf: leaf.used, default=None)
        if victim is None:
            return False
        self._remove(victim)
        return True

    def discard(self, tokens: Sequence[int]) -> None:
        """Give up every published chunk of ``tokens`` and all that was built on them."""
        for first in self.walk(self.root, tokens, 1):
            self._remove_branch(first)

    def _remove_branch(self, top: Node) -> None:
        branch = [top]
        for node in branch:
            branch.extend(node.children.values())
        for node in reversed(branch):
            self._remove(node)

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root cannot be removed"
        assert not leaf.children, "only leaves can be removed"
        del parent.children[leaf.key]
        self._leaves.discard(leaf)
        if not parent.children and parent is not self.root:
            self._leaves.add(parent)
        leaf.attached = False
        self._pool.unindex(leaf.pages)
        self._on_remove(leaf)
