"""Slots of recurrent state of one KDA layer, with rows that are not committed yet.

A step writes up to MAX_ROWS_PER_RUN rows of a sequence that may be rejected afterwards. The state therefore
stays where it was before them, and the rows' small inputs wait beside it; the next step of the sequence
starts at the position after the last accepted row and first folds the accepted ones in (lazy commit)::

    position   0 ............ committed | pending rows ....  |
                 state, history         |  accepted  | lost  |
                                                     ^ next step starts here

Checkpoints are copies of a slot in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.sizes import RecurrentShape
from tandem.core.batch import MAX_ROWS_PER_RUN
from tandem.core.errors import EngineFault


@dataclass(frozen=True, slots=True)
class SlotView:
    """One sequence's memory, to be read and written in place."""

    state: torch.Tensor
    """[H, K, V]"""
    history: torch.Tensor
    """[W−1, 3·H·K], the convolution inputs before ``committed``."""
    pending: torch.Tensor
    """[16, pending_values]"""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    state: torch.Tensor
    history: torch.Tensor
    pending: torch.Tensor
    committed: int


class RecurrentSlots:
    """The slots of one layer. ``committed`` and the number of pending rows are kept on the host."""

    def __init__(self, shape: RecurrentShape, max_slots: int) -> None:
        self.shape = shape
        H, K = shape.heads, shape.head_dim
        self._state = torch.zeros(max_slots, H, K, K)
        self._history = torch.zeros(max_slots, shape.conv_taps - 1, shape.channels)
        self._pending = torch.zeros(max_slots, MAX_ROWS_PER_RUN, shape.pending_values)
        self._committed = [0] * max_slots
        self._pending_rows = [0] * max_slots
        self._checkpoints: dict[int, _Checkpoint] = {}

    @property
    def allocated_bytes(self) -> int:
        return self._state.nbytes + self._history.nbytes + self._pending.nbytes

    def view(self, slot: int) -> SlotView:
        return SlotView(self._state[slot], self._history[slot], self._pending[slot])

    def reset(self, slot: int) -> None:
        """A new sequence starts in the slot at position 0."""
        self._state[slot].zero_()
        self._history[slot].zero_()
        self._committed[slot] = self._pending_rows[slot] = 0

    def accepted_rows(self, slot: int, start: int) -> int:
        """How many pending rows a step that starts at ``start`` accepts.

        Raises EngineFault if the state of that position is not to be had: a sequence continues where its
        committed rows end, or after any of its pending ones.
        """
        accepted = start - self._committed[slot]
        if not 0 <= accepted <= self._pending_rows[slot]:
            raise EngineFault(
                f"Slot {slot} cannot continue at position {start}",
                found=f"state at {self._committed[slot]}, {self._pending_rows[slot]} pending rows after it",
            )
        return accepted

    def commit(self, slot: int, position: int, pending_rows: int = 0) -> None:
        """The slot's state now is that before ``position``; so many rows after it are pending."""
        self._committed[slot] = position
        self._pending_rows[slot] = pending_rows

    def save(self, slot: int, number: int) -> None:
        """Copy the slot, pending rows included, to checkpoint ``number``, replacing what it held."""
        rows = self._pending_rows[slot]
        self._checkpoints[number] = _Checkpoint(
            self._state[slot].clone(),
            self._history[slot].clone(),
            self._pending[slot, :rows].clone(),
            self._committed[slot],
        )

    def restore(self, slot: int, number: int) -> None:
        """Load checkpoint ``number`` into the slot. Raises EngineFault if nothing was saved under it."""
        kept = self._checkpoints.get(number)
        if kept is None:
            raise EngineFault(f"Slot {slot} asks for state checkpoint {number}", found="it was never saved")
        self._state[slot].copy_(kept.state)
        self._history[slot].copy_(kept.history)
        rows = kept.pending.shape[0]
        self._pending[slot, :rows].copy_(kept.pending)
        self.commit(slot, kept.committed, rows)
