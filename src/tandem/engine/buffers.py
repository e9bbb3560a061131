"""One stage's layout tensors: allocated once, filled for every pass.

Every pass of R rows and N runs sees views of the same memory, whatever came before: addresses depend on
(R, N) alone, which is what capturing a step as a graph needs. A model whose steps are captured brings that
memory (``StageModel.step_memory``), and its steps begin with gathering the page tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.cache.layout import LayoutMemory, PrefillLayout, RowsLayout
from tandem.core.batch import EngineLimits, Run
from tandem.engine.images import StepImage
from tandem.engine.pages import PageUpdate


class StageBuffers:
    """Layouts of one stage on its device. Used by the stage's worker alone.

    Images are read by copies that are only queued where the device is a CUDA card.
    """

    def __init__(
        self, limits: EngineLimits, device: torch.device, step_memory: LayoutMemory | None = None
    ) -> None:
        rows, entries = limits.max_step_rows, limits.table_entries
        self._chunk_tokens = limits.chunk_tokens
        self._gathers = step_memory is None
        self._memory = step_memory or LayoutMemory.empty(
            rows, limits.chunk_tokens, limits.max_slots, entries, device
        )
        self._check(rows, limits.max_slots, entries)
        self._layouts: dict[tuple[int, int], RowsLayout] = {}

    @property
    def nbytes(self) -> int:
        """Of memory that the model has not brought."""
        return self._memory.nbytes if self._gathers else 0

    def write_pages(self, image: StepImage, updates: Sequence[PageUpdate]) -> None:
        """Bring the slots' page tables up to date: entries that did not change are not touched."""
        first = 0
        for update in updates:
            count = len(update.pages)
            entries = self._memory.slot_tables[update.slot, update.first : update.first + count]
            entries.copy_(image.pages[first : first + count], non_blocking=True)
            first += count

    def load_rows(self, image: StepImage, rows: int, runs: int) -> RowsLayout:
        """The layout of a ROWS pass, valid until the next ``load``."""
        self._memory.words.copy_rows(image.words)
        if self._gathers:
            self._memory.gather(runs)
        layout = self._layouts.get((rows, runs))
        if layout is None:
            layout = self._layouts[rows, runs] = self._rows_views(rows, runs)
        return layout

    def load_prefill(self, image: StepImage, run: Run) -> PrefillLayout:
        """The layout of a PREFILL pass, valid until the next ``load``."""
        self._memory.words.copy_chunk(image.words)
        return PrefillLayout(
            slot=run.slot,
            start=run.start,
            length=len(run.tokens),
            chunk_tokens=self._chunk_tokens,
            page_table=self._memory.slot_tables[run.slot],
            token_ids=self._memory.words.token_ids[: self._chunk_tokens],
        )

    def _rows_views(self, rows: int, runs: int) -> RowsLayout:
        words = self._memory.words
        return RowsLayout(
            token_ids=words.token_ids[:rows],
            positions=words.positions[:rows],
            run_of_row=words.run_of_row[:rows],
            slots=words.slots[:runs],
            run_starts=words.run_starts[: runs + 1],
            page_tables=self._memory.page_tables[:runs],
        )

    def _check(self, rows: int, slots: int, entries: int) -> None:
        """A model's memory is made from the plan that the limits come from."""
        words, tables = self._memory.words, self._memory.slot_tables
        fits = words.positions.shape[0] == rows and words.token_ids.shape[0] == max(rows, self._chunk_tokens)
        if not fits or tables.shape[0] < slots or tables.shape[1] < entries:
            raise ValueError(
                f"step memory for {words.positions.shape[0]} rows and tables {tuple(tables.shape)};"
                f" the engine needs {rows} rows and at least {(slots, entries)}"
            )
