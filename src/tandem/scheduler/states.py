"""Numbers of the recurrent-state checkpoints, and which prefix-index node each belongs to.

The engine holds the bytes; here is only the bookkeeping. A checkpoint is useless without the pages of the
same prefix and the other way round, so each number belongs to one node and leaves with it.
"""

from __future__ import annotations

from tandem.scheduler.prefix import Node


class CheckpointStore:
    """Checkpoint numbers 0 … ``count`` - 1, least recently used first.

    ::

        free ── allot ──► being written ── attach ──► of a node ── forget ──► free
                              └──────── give_back ─────────────────────────►
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._nodes: dict[int, Node] = {}
        self._pins = [0] * count

    def allot(self, *, may_evict: bool) -> int | None:
        """A number to write to; with ``may_evict`` the least recently used one loses its node."""
        if self._free:
            return self._free.pop()
        if may_evict:
            for number, node in self._nodes.items():
                if not self._pins[number]:
                    del self._nodes[number]
                    node.checkpoint = None
                    return number
        return None

    def take_over(self, node: Node) -> int | None:
        """The number of ``node``, to be written to anew; None if it has none or one about to be read."""
        number = node.checkpoint
        if number is None or self._pins[number]:
            return None
        del self._nodes[number]
        node.checkpoint = None
        return number

    def attach(self, number: int, node: Node) -> None:
        """The state at the end of ``node`` has been written under ``number``."""
        if not node.attached or node.checkpoint is not None:
            self.give_back(number)
            return
        node.checkpoint = number
        self._nodes[number] = node

    def give_back(self, number: int) -> None:
        """What was written under an allotted number is of no use."""
        self._free.append(number)

    def forget(self, node: Node) -> None:
        """``node`` left the index. Its number is free unless it is about to be read."""
        if node.checkpoint is not None and not self._pins[node.checkpoint]:
            del self._nodes[node.checkpoint]
            self._free.append(node.checkpoint)
            node.checkpoint = None

    def pin(self, number: int) -> None:
        """A sequence is going to read ``number``: keep it, and count this as a use."""
        self._pins[number] += 1
        self._nodes[number] = self._nodes.pop(number)

    def unpin(self, number: int) -> None:
        self._pins[number] -= 1
        node = self._nodes[number]
        if not node.attached:
            self.forget(node)

    @property
    def idle(self) -> bool:
        """Nothing is being written or about to be read."""
        return not any(self._pins) and len(self._free) + len(self._nodes) == self.count

    def __repr__(self) -> str:
        return f"{len(self._free)} free + {len(self._nodes)} of nodes, {self.count} in all, pins {self._pins}"
