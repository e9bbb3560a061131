"""How residual streams enter a stage: through host buffers, the only path every pair of cards has.

::

    stage s                         entrance of stage s + 1
    hidden ─ copy ─> host buffer ─ queue ─> (CUDA: copy to a fixed device tensor) ─> layers ─> buffer free

Two buffers let a stage fill one while the next stage still reads the other; a third would only lengthen
the queue. Alphabet: R rows of the pass, H residual width, T = most rows a pass can have.
"""

from __future__ import annotations

from queue import SimpleQueue

import torch

BUFFERS = 2


class Stopped(Exception):  # noqa: N818 - not an error: the engine is ending
    """A worker that waits for a buffer is told to end."""


class Entrance:
    """The buffers in front of one stage. One thread sends, one receives."""

    def __init__(self, rows: int, width: int, device: torch.device, *, pinned: bool) -> None:
        self._free: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(torch.zeros(rows, width, dtype=torch.float32, pin_memory=pinned))
        self._device_hidden: torch.Tensor | None = None
        if device.type != "cpu":
            self._device_hidden = torch.zeros(rows, width, dtype=torch.float32, device=device)
        self.nbytes = rows * width * 4 * (BUFFERS if self._device_hidden is None else 1)
        """On the stage's card: pinned host buffers are not the card's."""

    def send(self, hidden: torch.Tensor) -> torch.Tensor:
        """Copy ``hidden`` [R, H] into a buffer [T, H]; waits until one is free. Raises Stopped."""
        buffer = self._free.get()
        if buffer is None:
            raise Stopped
        buffer[: hidden.shape[0]].copy_(hidden)
        return buffer

    def receive(self, buffer: torch.Tensor, rows: int) -> torch.Tensor:
        """The sent rows [R, H] on the stage's device; the stage may overwrite them."""
        if self._device_hidden is None:
            return buffer[:rows]
        return self._device_hidden[:rows].copy_(buffer[:rows])

    def release(self, buffer: torch.Tensor) -> None:
        self._free.put(buffer)

    def stop(self) -> None:
        """Wake a sender that waits."""
        self._free.put(None)
