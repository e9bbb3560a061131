"""Host images of one pass's integers: filled by the submitting thread, read by every stage, then reused.

One image serves both kinds of pass. Its integers lie in one tensor, so that a stage takes them to its card
in one copy. Alphabet: R rows, N runs, M max_step_rows, C chunk_tokens::

    token_ids  int64 [max(M, C)]
    ints       int32 [4M + 1]     positions [M] │ run_of_row [M] │ slots [M] │ run_starts [M + 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue

import torch

from tandem.core.batch import EngineLimits, Run


class StepImage:
    """Fixed host tensors, pinned where a CUDA card reads them."""

    def __init__(self, limits: EngineLimits, *, pinned: bool) -> None:
        rows = limits.max_step_rows
        self.token_ids = torch.zeros(max(rows, limits.chunk_tokens), dtype=torch.int64, pin_memory=pinned)
        self.ints = torch.zeros(4 * rows + 1, dtype=torch.int32, pin_memory=pinned)
        self._tokens = self.token_ids.numpy()
        ints = self.ints.numpy()
        self._positions, self._run_of_row = ints[:rows], ints[rows : 2 * rows]
        self._slots, self._run_starts = ints[2 * rows : 3 * rows], ints[3 * rows :]

    def fill_rows(self, runs: Sequence[Run]) -> int:
        """Write the rows of ``runs``, grouped by run; returns how many there are."""
        row = 0
        for index, run in enumerate(runs):
            end = row + len(run.tokens)
            if end == row + 1:
                self._tokens[row] = run.tokens[0]
                self._positions[row] = run.start
            else:
                self._tokens[row:end] = run.tokens
                self._positions[row:end] = range(run.start, run.start + len(run.tokens))
            self._run_of_row[row:end] = index
            self._slots[index] = run.slot
            self._run_starts[index + 1] = end
            row = end
        return row

    def fill_prefill(self, tokens: Sequence[int], chunk_tokens: int) -> None:
        """Write one chunk, padded with token 0."""
        self._tokens[: len(tokens)] = tokens
        self._tokens[len(tokens) : chunk_tokens] = 0


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
