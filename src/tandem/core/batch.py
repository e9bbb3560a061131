"""One step's work, as integers only, and what comes back.

Two kinds of rows, because promise 1 (the same bits whatever else runs) rests on how rows are multiplied::

    positions of a prompt of P tokens, chunk size C (a multiple of the page size):

    0        C        2C       3C   P            P+n
    |--------|--------|--------|----|------------|
      PREFILL  PREFILL  PREFILL  PREFILL   ROWS, 1..16 at a time: decode, verify, replay after preemption
                                 (short: the engine pads it to C rows, so that the shape
                                  and with it every bit is that of a full chunk)

A PREFILL run starts at a multiple of C and is multiplied on its own, always as C rows. ROWS of any number
of sequences are multiplied together by kernels whose arithmetic for a row does not depend on the others.
Prompt positions are only ever computed by PREFILL, generated positions only by ROWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandem.core.protocols import TokenConstraint
from tandem.core.requests import SamplingParams, TokenLogprob

MAX_ROWS_PER_RUN = 16
"""Rows of one sequence in one step (DESIGN: 1..16 rows for decode and verify)."""


class RunKind(Enum):
    PREFILL = "prefill"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence.

    ``pages[i]`` is the physical page of positions [i·page_tokens, (i+1)·page_tokens); it covers at least
    [0, start + len(tokens)). The same tuple object is passed again while a table has not changed, so an
    engine may compare by identity.
    Pages below the first PREFILL run of a sequence may be shared with others: they are read, never written.
    """

    slot: int
    kind: RunKind
    tokens: tuple[int, ...]
    start: int
    pages: tuple[int, ...]
    sample: bool
    """Sample a token after the last row."""
    restore_checkpoint: int | None = None
    """Recurrent state: load this checkpoint into the slot before the run (position = ``start``)."""
    save_checkpoint: int | None = None
    """Recurrent state: store the slot's state after the run under this number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: any number of ROWS runs, then any number of PREFILL runs; a slot occurs at most once."""

    step: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The outcome of one run with ``sample``: accepted tokens (one without speculation)."""

    slot: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class SlotFault:
    """One sequence's own failure (say, logits that are not finite). The others of the batch are unharmed."""

    slot: int
    message: str
    asked_for: bool = False
    """The request brought it about, not the model or the machine: no token that it allows is left, say."""


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    sampled: tuple[Sampled, ...]
    faults: tuple[SlotFault, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What the sampler must know about a sequence when it takes a slot.

    ``history`` is prompt plus tokens generated so far (non-empty output only after a preemption);
    ``prompt_length`` splits the two. The n-th output token (from 0) is drawn with (seed, n).
    """

    sampling: SamplingParams
    history: tuple[int, ...]
    prompt_length: int
    stop_token_ids: frozenset[int] = frozenset()
    constraint: TokenConstraint | None = None
    """Already advanced over the generated part of ``history``."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The numbers scheduler and engine agree on."""

    page_tokens: int
    chunk_tokens: int
    """A multiple of ``page_tokens``."""
    total_pages: int
    max_slots: int
    """Sequences that can run at once; slots are 0..max_slots-1."""
    max_step_rows: int
    """ROWS rows in one batch, all runs together."""
    context_tokens: int
    """Longest sequence, prompt plus output."""
    pipeline_depth: int
    """Batches worth keeping in flight: the number of stages."""
    state_checkpoints: int = 0
    """Recurrent-state checkpoints the engine can hold; 0 for models without such state."""

    @property
    def table_entries(self) -> int:
        return table_entries(self.context_tokens, self.chunk_tokens, self.page_tokens)


def most_step_rows(max_slots: int) -> int:
    """One sequence may replay or verify its 16 rows beside a row of every other."""
    return max_slots + MAX_ROWS_PER_RUN


def table_entries(context_tokens: int, chunk_tokens: int, page_tokens: int) -> int:
    """Pages a sequence can have: those of its last chunk count whole, even beyond the context."""
    return -(-context_tokens // chunk_tokens) * (chunk_tokens // page_tokens)


def layout_bytes(max_slots: int, context_tokens: int, chunk_tokens: int, page_tokens: int) -> int:
    """What a stage keeps to describe its passes.

    Token ids int64; four numbers a row and two beside them, and page tables of every slot and row, int32.
    """
    rows = most_step_rows(max_slots)
    entries = table_entries(context_tokens, chunk_tokens, page_tokens)
    return 8 * max(rows, chunk_tokens) + 4 * (4 * rows + 2 + (max_slots + rows) * entries)
