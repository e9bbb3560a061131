"""A stage whose every value can be followed by hand: integers in fp32, exact in any order.

A row's residual is two numbers below ``PRIME``. Each layer stores the first through the page table and
replaces it by a hash of everything stored at positions 0..p, and folds it into the slot's recurrent state,
which becomes the second. ``reference_token`` computes the same from the list of tokens alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.models.base import RowSampler

PRIME = 8191
VOCAB = 97
WIDTH = 2


def fold(values: Sequence[int], salt: int) -> int:
    result = salt
    for value in values:
        result = (result * 31 + value + 1) % PRIME
    return result


def reference_token(tokens: Sequence[int], layers: int) -> int:
    """The greedy token after ``tokens``."""
    values = [token % PRIME for token in tokens]
    states = [0] * len(tokens)
    for layer in range(layers):
        stored = [(value + 7 * state) % PRIME for value, state in zip(values, states, strict=True)]
        values = [fold(stored[: p + 1], layer) for p in range(len(stored))]
        state = 0
        for p, value in enumerate(values):
            state = (state * 17 + value) % PRIME
            states[p] = state
    return (values[-1] + states[-1]) % VOCAB


class FakeStage:
    """Implements StageModel. ``hook(event)`` runs before every call: a test may raise or block there."""

    def __init__(
        self,
        *,
        layers: range,
        pages: int,
        page_tokens: int,
        slots: int,
        hook: Callable[[str], None] | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.layers = layers
        self.page_tokens = page_tokens
        self.hook = hook or (lambda event: None)
        self.cache = torch.full((len(layers), pages, page_tokens), torch.nan, device=self.device)
        self.states = torch.full((len(layers), slots), torch.nan, device=self.device)
        self.poisoned: int | None = None
        """Rows whose greedy token would be this one get a NaN among their logits."""
        self.row_sampler: RowSampler | None = None
        self.kept: dict[int, torch.Tensor] = {}
        self.events: list[str] = []
        self.addresses: set[tuple[int, ...]] = set()
        self.threads: set[int] = set()

    @property
    def weight_bytes(self) -> int:
        return 1000 * len(self.layers)

    @property
    def cache_bytes(self) -> int:
        return self.cache.nbytes + self.states.nbytes

    @property
    def working_bytes(self) -> int:
        return 0

    @property
    def step_memory(self) -> None:
        return None

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        assert token_ids.device == self.device
        hidden = torch.zeros(token_ids.shape[0], WIDTH, device=self.device)
        hidden[:, 0] = token_ids.float()
        return hidden

    def forward_rows(self, hidden: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        self.note(f"rows {hidden.shape[0]}")
        assert hidden.is_contiguous()
        assert hidden.device == layout.positions.device == layout.page_tables.device == self.device
        assert hidden.shape == (layout.positions.shape[0], WIDTH)
        self.addresses.add(
            (layout.token_ids.data_ptr(), layout.positions.data_ptr(), layout.page_tables.data_ptr())
        )
        starts = layout.run_starts.tolist()
        for run, slot in enumerate(layout.slots.tolist()):
            rows = slice(starts[run], starts[run + 1])
            assert set(layout.run_of_row[rows].tolist()) == {run}
            first = int(layout.positions[rows][0])
            assert layout.positions[rows].tolist() == list(
                range(first, first + starts[run + 1] - starts[run])
            )
            self._run(hidden[rows], slot, first, layout.page_tables[run])
        assert starts[-1] == hidden.shape[0]
        return hidden

    def forward_prefill(self, hidden: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        self.note(f"prefill {layout.start}+{layout.length}")
        assert hidden.shape == (layout.chunk_tokens, WIDTH)
        assert layout.start % layout.chunk_tokens == 0
        self._run(hidden[: layout.length], layout.slot, layout.start, layout.page_table)
        hidden[layout.length :] = torch.nan
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.note(f"logits {hidden.shape[0]}")
        best = hidden.sum(dim=1) % VOCAB
        distance = (torch.arange(VOCAB, device=self.device)[None, :] - best[:, None]) % VOCAB
        logits = -distance.float() / 8
        if self.poisoned is not None:
            logits[best == self.poisoned, VOCAB // 2] = torch.nan
        return logits

    def reset_slot(self, slot: int) -> None:
        self.note(f"reset {slot}")
        self.states[:, slot] = 0.0

    def save_state(self, slot: int, checkpoint: int) -> None:
        self.note(f"save {slot} {checkpoint}")
        self.kept[checkpoint] = self.states[:, slot].clone()

    def restore_state(self, slot: int, checkpoint: int) -> None:
        self.note(f"restore {slot} {checkpoint}")
        self.states[:, slot] = self.kept[checkpoint]

    def note(self, event: str) -> None:
        self.events.append(event)
        self.threads.add(threading.get_ident())
        self.hook(event)

    def _run(self, hidden: torch.Tensor, slot: int, start: int, page_table: torch.Tensor) -> None:
        end = start + hidden.shape[0]
        table = page_table[: -(-end // self.page_tokens)].long()
        for index, layer in enumerate(self.layers):
            values = (hidden[:, 0] + 7 * hidden[:, 1]) % PRIME
            for offset, value in enumerate(values.tolist()):
                position = start + offset
                self.cache[index, table[position // self.page_tokens], position % self.page_tokens] = value
            stored = [int(v) for v in self.cache[index, table].flatten()[:end].tolist()]
            for offset in range(hidden.shape[0]):
                value = fold(stored[: start + offset + 1], layer)
                state = (int(self.states[index, slot]) * 17 + value) % PRIME
                self.states[index, slot] = state
                hidden[offset, 0], hidden[offset, 1] = value, state
