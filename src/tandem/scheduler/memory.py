"""What sequences hold on the engine: pages and recurrent-state checkpoints, shared through the prefix index.

::

    a sequence's page table while it prefills

    0            node.depth·C      scheduled     needed
    |--- shared ------|--- own --------|--- own ---|
      in the index,     not published    taken by
      read only         yet              ``grow``

With ``fast`` reuse the chunks that decoding fills are published too, marked as approximate.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.batch import EngineLimits, Run, RunKind
from tandem.core.errors import EngineFault
from tandem.scheduler.config import PrefixReuse
from tandem.scheduler.pages import PagePool
from tandem.scheduler.prefix import Node, PrefixIndex
from tandem.scheduler.sequence import Sequence
from tandem.scheduler.states import CheckpointStore

Secure = Callable[[Sequence, int], bool]
"""Make sure that a sequence has pages for positions [0, end); False = not in this step."""


class SequenceMemory:
    """Gives pages to sequences, takes them back, and shares what they have in common."""

    def __init__(self, limits: EngineLimits, *, reuse: PrefixReuse) -> None:
        self._page_tokens = limits.page_tokens
        self._chunk_tokens = limits.chunk_tokens
        self._reuse = reuse
        self._recurrent = limits.state_checkpoints > 0
        self.pool = PagePool(limits.total_pages)
        self.checkpoints = CheckpointStore(limits.state_checkpoints)
        self.index = PrefixIndex(self.pool, limits.chunk_tokens, self.checkpoints.forget)
        self.reused_tokens = 0
        """Prompt tokens that did not have to be computed; only grows."""

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def shares(self, sequence: Sequence) -> bool:
        """Whether the sequence may use and publish shared chunks at all."""
        return self._reuse != "off" and sequence.request.reuse_prefix

    def enter(self, sequence: Sequence) -> None:
        """The sequence starts to run, holding nothing yet."""
        sequence.node = self.index.root if self.shares(sequence) else None

    def live_prefix_pages(self, sequence: Sequence) -> int:
        """Pages a waiting sequence would share with running ones: they cost it nothing."""
        if not self.shares(sequence):
            return 0
        path = self._usable(self._match(self.index.root, sequence))
        return sum(len(node.pages) for node in path if self.pool.references(node.pages[0]))

    def adopt(self, sequence: Sequence) -> None:
        """Skip the prompt chunks that somebody has published by now.

        With recurrent state the sequence can only go on where a checkpoint lies.
        """
        node = sequence.node
        if node is None or not node.attached or sequence.in_flight:
            return
        assert sequence.scheduled == node.depth * self._chunk_tokens, "chunks are published in order"
        path = self._match(node, sequence)
        usable = self._usable(path)
        if len(usable) < len(path):
            sequence.branch_tokens = path[-1].depth * self._chunk_tokens
        if not usable:
            return
        shared = tuple(page for chunk in usable for page in chunk.pages)
        self.pool.hold(shared)
        sequence.pages += shared
        sequence.node = usable[-1]
        sequence.scheduled = sequence.node.depth * self._chunk_tokens
        self.index.touch(sequence.node)
        if self._recurrent:
            number = sequence.node.checkpoint
            assert number is not None, "a usable path ends at a checkpoint"
            self._unpin(sequence.restore_checkpoint)
            self.checkpoints.pin(number)
            sequence.restore_checkpoint = number
        self.reused_tokens += sequence.count_prompt(sequence.scheduled, cached=True)

    def grow(self, sequence: Sequence, end: int) -> bool:
        """Give the sequence pages for positions [0, ``end``), evicting cached ones; False = pool is dry."""
        missing = self.pages_for(end) - len(sequence.pages)
        if missing <= 0:
            return True
        while self.pool.free_pages < missing:
            if not self.index.evict_leaf():
                return False
        sequence.pages += self.pool.take(missing)
        return True

    def checkpoint_for(self, sequence: Sequence, end: int) -> int | None:
        """A number to save the recurrent state at position ``end`` under, if that is worth one.

        The prompt's last chunk boundary (where its next turn will resume), the last one before its last
        token (where the same prompt will), and a point where known prompts part may displace an older
        checkpoint; other boundaries only take free numbers. So may the boundaries of the output (``fast``),
        where each takes the place of the one before it: an answer costs one number, however long it grows.
        """
        if not self._recurrent or not self.publishes(sequence, end) or not self._wants_state(sequence, end):
            return None
        if end > sequence.prompt_length:
            assert sequence.node is not None
            in_output = sequence.node.depth * self._chunk_tokens > sequence.prompt_length
            moved = self.checkpoints.take_over(sequence.node) if in_output else None
            return self.checkpoints.allot(may_evict=True) if moved is None else moved
        next_turn, again = (
            tokens // self._chunk_tokens * self._chunk_tokens
            for tokens in (sequence.prompt_length, sequence.prompt_length - 1)
        )
        # A single number is the next turn's: it could still be in flight when that boundary comes.
        worth_one = end in (next_turn, sequence.branch_tokens) or (
            end == again and self.checkpoints.count > 1
        )
        return self.checkpoints.allot(may_evict=worth_one)

    def _wants_state(self, sequence: Sequence, end: int) -> bool:
        """Whether the node that will stand for the chunk up to ``end`` can do with this sequence's state."""
        assert sequence.node is not None
        depth = end // self._chunk_tokens
        path = self.index.walk(sequence.node, sequence.history, depth)
        if not path or path[-1].depth < depth:
            return True
        approximate = sequence.node.approximate or end > sequence.prompt_length
        if path[-1].approximate != approximate:
            return not approximate
        return path[-1].checkpoint is None

    def publishes(self, sequence: Sequence, end: int) -> bool:
        """Whether the chunk that ends at ``end`` will be shared once it is computed."""
        return (
            sequence.node is not None
            and sequence.node.attached
            and end % self._chunk_tokens == 0
            and (end <= sequence.prompt_length or self._reuse == "fast")
        )

    def cut_rows(self, sequence: Sequence, rows: int) -> int:
        """How many of the next ``rows`` to take in one run: up to a position whose state is to be saved."""
        boundary = (sequence.scheduled // self._chunk_tokens + 1) * self._chunk_tokens
        if not self._recurrent or not self.publishes(sequence, boundary):
            return rows
        return min(rows, boundary - sequence.scheduled)

    def can_be_adopted(self, sequence: Sequence, run: Run) -> bool:
        """Whether others may go on from the end of this chunk once it is computed."""
        return self.publishes(sequence, run.start + len(run.tokens)) and (
            not self._recurrent or run.save_checkpoint is not None
        )

    def settle(self, sequence: Sequence, run: Run) -> None:
        """A run has been computed: share the chunks it completes, and tie its checkpoint to the last."""
        self._unpin(run.restore_checkpoint)
        number, end = run.save_checkpoint, run.start + len(run.tokens)
        for depth in range(run.start // self._chunk_tokens, end // self._chunk_tokens):
            if not self.publishes(sequence, (depth + 1) * self._chunk_tokens):
                break
            node, is_own_kind = self._publish(sequence, depth, decoded=run.kind is RunKind.ROWS)
            # The state of a decoded chunk has no place at an exact one with the same tokens.
            if number is not None and is_own_kind and node.depth * self._chunk_tokens == end:
                self.checkpoints.attach(number, node)
                number = None
        self._give_back(number)

    def _publish(self, sequence: Sequence, depth: int, *, decoded: bool) -> tuple[Node, bool]:
        """The node that stands for the sequence's chunk at ``depth``, and whether it is as exact as that."""
        assert sequence.node is not None
        assert sequence.node.depth == depth, "chunks are published in order"
        first, last = (self.pages_for(end * self._chunk_tokens) for end in (depth, depth + 1))
        own = sequence.pages[first:last]
        approximate = decoded or sequence.node.approximate
        key = self.index.chunk(sequence.history, depth)
        node = self.index.publish(sequence.node, key, own, approximate=approximate)
        if node.pages != own:
            # Somebody was first with the same chunk: keep one copy. Of exact chunks the bits are the same.
            self.pool.hold(node.pages)
            self.pool.drop(own)
            sequence.pages = sequence.pages[:first] + node.pages + sequence.pages[last:]
        sequence.node = node
        return node, node.approximate == approximate

    def spoil(self, sequence: Sequence, run: Run) -> None:
        """A run went wrong: nothing this sequence read or wrote may be reused."""
        self.abandon(run)
        sequence.node = None
        self.index.discard(sequence.history)

    def abandon(self, run: Run) -> None:
        """A run was never finished, or came to nothing."""
        self._unpin(run.restore_checkpoint)
        self._give_back(run.save_checkpoint)

    def release(self, sequence: Sequence) -> None:
        """Take everything back. Published chunks stay, cached, until their pages are needed."""
        self._unpin(sequence.restore_checkpoint)
        sequence.restore_checkpoint = None
        if sequence.node is not None and sequence.node.attached:
            self.index.touch(sequence.node)
        self.pool.drop(sequence.pages)
        sequence.pages = ()

    def check(self, tables: list[tuple[int, ...]]) -> None:
        """Recount every page from the page tables of the running sequences. Raises EngineFault."""
        self.pool.check(tables)
        if not tables and not self.checkpoints.idle:
            raise EngineFault("A state checkpoint is held by nobody", found=repr(self.checkpoints))

    def _unpin(self, number: int | None) -> None:
        if number is not None:
            self.checkpoints.unpin(number)

    def _give_back(self, number: int | None) -> None:
        if number is not None:
            self.checkpoints.give_back(number)

    def _match(self, node: Node, sequence: Sequence) -> list[Node]:
        # One prompt token is always computed: its logits give the first output token.
        end_depth = (sequence.prompt_length - 1) // self._chunk_tokens
        return self.index.walk(node, sequence.request.prompt_tokens, end_depth)

    def _usable(self, path: list[Node]) -> list[Node]:
        if not self._recurrent:
            return path
        while path and path[-1].checkpoint is None:
            path = path[:-1]
        return path
