"""One stage's layout tensors: allocated once, filled for every pass.

Every pass of R rows and N runs sees views of the same memory, whatever came before: addresses depend on
(R, N) alone, which is what capturing a step as a graph needs. Alphabet as in ``images.py``; S slots,
P entries a page table (``EngineLimits.table_entries``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.batch import EngineLimits, Run
from tandem.engine.images import StepImage
from tandem.engine.pages import PageUpdate


class StageBuffers:
    """Layouts of one stage on its device. Used by the stage's worker alone."""

    def __init__(self, limits: EngineLimits, device: torch.device) -> None:
        rows, chunk = limits.max_step_rows, limits.chunk_tokens
        pages = limits.table_entries
        self._chunk_tokens = chunk
        self._max_rows = rows
        self._token_ids = torch.zeros(max(rows, chunk), dtype=torch.int64, device=device)
        self._ints = torch.zeros(4 * rows + 1, dtype=torch.int32, device=device)
        self._slot_tables = torch.zeros(limits.max_slots, pages, dtype=torch.int32, device=device)
        self._page_tables = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self._layouts: dict[tuple[int, int], RowsLayout] = {}

    @property
    def nbytes(self) -> int:
        tensors = (self._token_ids, self._ints, self._slot_tables, self._page_tables)
        return sum(tensor.nbytes for tensor in tensors)

    def write_pages(self, updates: Sequence[PageUpdate]) -> None:
        """Bring the slots' page tables up to date: [S, P], entries that did not change are not touched."""
        for update in updates:
            end = update.first + len(update.pages)
            self._slot_tables[update.slot, update.first : end] = torch.tensor(update.pages, dtype=torch.int32)

    def load_rows(self, image: StepImage, rows: int, runs: int) -> RowsLayout:
        """The layout of a ROWS pass, valid until the next ``load``."""
        self._token_ids.copy_(image.token_ids)
        self._ints.copy_(image.ints)
        layout = self._layouts.get((rows, runs))
        if layout is None:
            layout = self._layouts[rows, runs] = self._rows_views(rows, runs)
        torch.index_select(self._slot_tables, 0, layout.slots, out=layout.page_tables)
        return layout

    def load_prefill(self, image: StepImage, run: Run) -> PrefillLayout:
        """The layout of a PREFILL pass, valid until the next ``load``."""
        self._token_ids.copy_(image.token_ids)
        return PrefillLayout(
            slot=run.slot,
            start=run.start,
            length=len(run.tokens),
            chunk_tokens=self._chunk_tokens,
            page_table=self._slot_tables[run.slot],
            token_ids=self._token_ids[: self._chunk_tokens],
        )

    def _rows_views(self, rows: int, runs: int) -> RowsLayout:
        limit, ints = self._max_rows, self._ints
        return RowsLayout(
            token_ids=self._token_ids[:rows],
            positions=ints[:rows],
            run_of_row=ints[limit : limit + rows],
            slots=ints[2 * limit : 2 * limit + runs],
            run_starts=ints[3 * limit : 3 * limit + runs + 1],
            page_tables=self._page_tables[:runs],
        )
