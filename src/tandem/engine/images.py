"""Host images of one pass's integers: filled by the submitting thread, read by every stage, then reused.

One image serves both kinds of pass. ``cache.layout.LayoutWords`` says how its integers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue

import torch

from tandem.cache.layout import LayoutWords
from tandem.core.batch import EngineLimits, Run
from tandem.engine.pages import PageUpdate


class StepImage:
    """Fixed host memory, pinned where a CUDA card reads it."""

    def __init__(self, limits: EngineLimits, *, pinned: bool) -> None:
        self.words = LayoutWords.empty(limits.max_step_rows, limits.chunk_tokens, pinned=pinned)
        entries = limits.max_slots * limits.table_entries
        self.pages = torch.zeros(entries, dtype=torch.int32, pin_memory=pinned)
        """Entries of the pass's page updates, one update after the other."""
        self._tokens, self._pages = self.words.token_ids.numpy(), self.pages.numpy()
        self._positions, self._run_of_row = self.words.positions.numpy(), self.words.run_of_row.numpy()
        self._slots, self._run_starts = self.words.slots.numpy(), self.words.run_starts.numpy()

    def fill_rows(self, runs: Sequence[Run]) -> int:
        """Write the rows of ``runs``, grouped by run; returns how many there are."""
        row = 0
        for index, run in enumerate(runs):
            end = row + len(run.tokens)
            if end == row + 1:
                self._tokens[row] = run.tokens[0]
                self._positions[row] = run.start
                self._run_of_row[row] = index
            else:
                self._tokens[row:end] = run.tokens
                self._positions[row:end] = range(run.start, run.start + len(run.tokens))
                self._run_of_row[row:end] = index
            self._slots[index] = run.slot
            self._run_starts[index + 1] = end
            row = end
        self._run_starts[len(runs) + 1 :] = row
        return row

    def fill_prefill(self, tokens: Sequence[int], chunk_tokens: int) -> None:
        """Write one chunk, padded with token 0."""
        self._tokens[: len(tokens)] = tokens
        self._tokens[len(tokens) : chunk_tokens] = 0

    def fill_pages(self, updates: Sequence[PageUpdate]) -> None:
        """Write what changes in the page tables, at most once a slot."""
        first = 0
        for update in updates:
            end = first + len(update.pages)
            self._pages[first:end] = update.pages
            first = end


class ImagePool:
    """Free images. Grows to the passes in flight, which the scheduler bounds."""

    def __init__(self, limits: EngineLimits, *, pinned: bool) -> None:
        self._limits = limits
        self._pinned = pinned
        self._free: SimpleQueue[StepImage] = SimpleQueue()

    def acquire(self) -> StepImage:
        try:
            return self._free.get_nowait()
        except Empty:
            return StepImage(self._limits, pinned=self._pinned)

    def release(self, image: StepImage) -> None:
        """The last stage has read it."""
        self._free.put(image)
