"""Recurrent state of a stage's slots on a card: reset, kept in host memory, and folded when prefill needs it.

A step leaves its rows pending and the next step folds those that were accepted (``kernels/kda``). Prefill has
no such beginning. Whether a chunk finds pending rows is known on the host: they lie between the position that
prefill has left in the slot and the one the chunk starts at. How many there are only the card knows.

The raw tail of the indexer is not kept: a checkpoint is taken at a multiple of the chunk, where every pool of
keys is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tandem.core.errors import EngineFault
from tandem.kernels.kda.cuda import DeviceSlots


@dataclass(frozen=True, slots=True)
class _Kept:
    """One layer of a checkpoint, in host memory (pinned beside a card)."""

    state: torch.Tensor
    history: torch.Tensor
    committed: torch.Tensor
    pending: torch.Tensor | None

    @classmethod
    def like(cls, slots: DeviceSlots, *, pending: bool) -> _Kept:
        def host(part: torch.Tensor) -> torch.Tensor:
            return torch.empty(part.shape[1:], dtype=part.dtype, pin_memory=part.is_cuda)

        return cls(
            host(slots.state),
            host(slots.history),
            host(slots.committed),
            host(slots.pending) if pending else None,
        )


@dataclass(slots=True)
class _Checkpoint:
    layers: list[_Kept]
    prefilled: int
    has_pending: bool


class SlotStates:
    """The slots of all recurrent layers of one stage. Copies are queued behind the stage's own work."""

    def __init__(self, layers: Sequence[DeviceSlots], max_slots: int) -> None:
        self._layers = tuple(layers)
        self._prefilled = [0] * max_slots
        self._kept: dict[int, _Checkpoint] = {}

    def reset(self, slot: int) -> None:
        """A new sequence starts in the slot at position 0."""
        for layer in self._layers:
            layer.reset(slot)
        self._prefilled[slot] = 0

    def needs_fold(self, slot: int, start: int) -> bool:
        """Whether rows lie between the end of the slot's prefill and ``start``."""
        return bool(self._layers) and self._prefilled[slot] != start

    def prefilled(self, slot: int, end: int) -> None:
        """Prefill has left the slot's state at position ``end``, nothing pending."""
        self._prefilled[slot] = end

    def save(self, slot: int, number: int, *, after_rows: bool) -> None:
        """Copy the slot to checkpoint ``number``, replacing what it held; pending rows only after rows."""
        checkpoint = self._kept.get(number)
        if checkpoint is None or (after_rows and any(kept.pending is None for kept in checkpoint.layers)):
            layers = [_Kept.like(layer, pending=after_rows) for layer in self._layers]
            checkpoint = self._kept[number] = _Checkpoint(layers, 0, after_rows)
        checkpoint.prefilled, checkpoint.has_pending = self._prefilled[slot], after_rows
        for layer, kept in zip(self._layers, checkpoint.layers, strict=True):
            kept.state.copy_(layer.state[slot], non_blocking=True)
            kept.history.copy_(layer.history[slot], non_blocking=True)
            kept.committed.copy_(layer.committed[slot], non_blocking=True)
            if after_rows and kept.pending is not None:
                kept.pending.copy_(layer.pending[slot], non_blocking=True)

    def restore(self, slot: int, number: int) -> None:
        """Load checkpoint ``number`` into the slot. Raises EngineFault if nothing was saved under it."""
        checkpoint = self._kept.get(number)
        if checkpoint is None:
            raise EngineFault(f"Slot {slot} asks for state checkpoint {number}", found="it was never saved")
        self._prefilled[slot] = checkpoint.prefilled
        for layer, kept in zip(self._layers, checkpoint.layers, strict=True):
            layer.state[slot].copy_(kept.state, non_blocking=True)
            layer.history[slot].copy_(kept.history, non_blocking=True)
            layer.committed[slot].copy_(kept.committed, non_blocking=True)
            if checkpoint.has_pending and kept.pending is not None:
                layer.pending[slot].copy_(kept.pending, non_blocking=True)
