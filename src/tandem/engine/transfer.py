"""How residual streams enter a stage: through host buffers, the only path every pair of cards has.

::

    stage s                         entrance of stage s + 1
    hidden ─ copy ─> host buffer ─ queue ─> (CUDA: copy to a fixed device tensor) ─> layers ─> buffer free

Between CUDA cards both copies are queued and the second waits for the first on the card: the next stage's
worker is told at once and has its own work queued by the time the streams arrive.

Two buffers let a stage fill one while the next stage still reads the other; a third would only lengthen
the queue. Alphabet: R rows of the pass, H residual width, T = most rows a pass can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue

import torch

BUFFERS = 2


class Stopped(Exception):  # noqa: N818 - not an error: the engine is ending
    """A worker that waits for a buffer is told to end."""


@dataclass(slots=True, eq=False)
class HostBuffer:
    """Residual streams on their way."""

    streams: torch.Tensor
    """fp32 [T, H], pinned beside CUDA cards."""
    ready: torch.cuda.Event | None = None
    """When a CUDA card has written them; None where the sender waited."""


class Entrance:
    """The buffers in front of one stage. One thread sends, one receives."""

    def __init__(self, rows: int, width: int, device: torch.device, *, pinned: bool) -> None:
        self._free: SimpleQueue[HostBuffer | None] = SimpleQueue()
        for _ in range(BUFFERS):
            streams = torch.zeros(rows, width, dtype=torch.float32, pin_memory=pinned)
            self._free.put(HostBuffer(streams))
        self._device_hidden: torch.Tensor | None = None
        if device.type != "cpu":
            self._device_hidden = torch.zeros(rows, width, dtype=torch.float32, device=device)
        self.nbytes = rows * width * 4 * (BUFFERS if self._device_hidden is None else 1)
        """On the stage's card: pinned host buffers are not the card's."""

    def send(self, hidden: torch.Tensor) -> HostBuffer:
        """Copy ``hidden`` [R, H] into a buffer [T, H]; waits until one is free. Raises Stopped."""
        buffer = self._free.get()
        if buffer is None:
            raise Stopped
        buffer.streams[: hidden.shape[0]].copy_(hidden, non_blocking=True)
        if hidden.is_cuda:
            if buffer.ready is None:
                buffer.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffer.ready.record(torch.cuda.current_stream(hidden.device))
        return buffer

    def receive(self, buffer: HostBuffer, rows: int) -> torch.Tensor:
        """The sent rows [R, H] on the stage's device; the stage may overwrite them.

        On a CUDA card they are only queued: ``release`` comes when the card has read them.
        """
        if self._device_hidden is None:
            if buffer.ready is not None:
                buffer.ready.synchronize()
            return buffer.streams[:rows]
        if buffer.ready is not None:
            torch.cuda.current_stream(self._device_hidden.device).wait_event(buffer.ready)
        return self._device_hidden[:rows].copy_(buffer.streams[:rows], non_blocking=True)

    def release(self, buffer: HostBuffer) -> None:
        self._free.put(buffer)

    def stop(self) -> None:
        """Wake a sender that waits."""
        self._free.put(None)
