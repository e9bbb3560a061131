"""A safetensors checkpoint read straight onto a card, a layer ahead of whoever asks.

::

    file ── 8 threads, 32 MiB at a time ──► pinned buffers ── streams of their own ──► final addresses

The first tensor asked for of a layer brings the whole layer, in the order of the file, and begins the next.
The quantized matrices of a layer lie in one block of memory, because thousands of small ones would cost the
allocator a twentieth of the card; everything else is its own and freed when the caller drops it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

import torch

from tandem.loader.base import TensorHeader
from tandem.loader.header import TensorEntry
from tandem.loader.raw import read_into
from tandem.loader.safetensors import SafetensorsSource, torch_dtype

BUFFER_BYTES = 32 << 20
_THREADS = 8
_LARGEST_GAP_BYTES = 1 << 20
"""Bytes nobody asked for are read along when they are fewer than this."""
_ALIGNMENT = 256
_LAYER = re.compile(r"(?P<prefix>.*\.layers\.)(?P<number>\d+)\.")
_IN_ONE_BLOCK = ".trellis"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of one tensor, on their way from a file to a card."""

    name: str
    path: Path
    offset_bytes: int
    target: torch.Tensor
    """uint8, on the card."""

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.target.numel()


@dataclass(slots=True)
class _Layer:
    """Tensors that are there once every future is done."""

    tensors: dict[str, torch.Tensor]
    reads: list[Future[None]]


class DeviceSource:
    """Implements ``TensorSource``; ``read`` gives a tensor on ``device``. Use it in a ``with`` block.

    ``arrived`` hears the bytes of every read, from any thread. Layers at and after ``end_layer`` are not read
    ahead.
    """

    def __init__(
        self,
        source: SafetensorsSource,
        device: torch.device,
        *,
        end_layer: int,
        arrived: Callable[[int], None],
    ) -> None:
        self._source = source
        self._device = device
        self._end_layer = end_layer
        self._arrived = arrived
        self._layers: dict[str, _Layer] = {}
        self._by_layer: dict[str, list[TensorEntry]] = {}
        for entry in source.checkpoint.entries.values():
            if match := _LAYER.match(entry.name):
                self._by_layer.setdefault(match[0], []).append(entry)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="read")
        self._buffers: SimpleQueue[torch.Tensor] = SimpleQueue()
        for _ in range(_THREADS):
            self._buffers.put(torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda"))

    def __enter__(self) -> DeviceSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._layers.clear()

    def names(self) -> Collection[str]:
        return self._source.names()

    def header(self, name: str) -> TensorHeader:
        return self._source.header(name)

    def read(self, name: str) -> torch.Tensor:
        """See TensorSource; the tensor lies on the card, and a layer's is given once."""
        match = _LAYER.match(name)
        if match is None or match[0] not in self._by_layer:
            return self._finished(self._begin([self._source.entry(name)])).pop(name)
        layer = self._layers.get(match[0])
        if layer is None:
            layer = self._layers[match[0]] = self._begin(self._by_layer[match[0]])
        following = int(match["number"]) + 1
        ahead = f"{match['prefix']}{following}."
        if following < self._end_layer and ahead in self._by_layer and ahead not in self._layers:
            self._layers[ahead] = self._begin(self._by_layer[ahead])
        return self._finished(layer).pop(name)

    def _finished(self, layer: _Layer) -> dict[str, torch.Tensor]:
        """Waits; raises ModelDamagedError for bytes that are not there."""
        for read in layer.reads:
            read.result()
        layer.reads.clear()
        return layer.tensors

    def _begin(self, entries: Sequence[TensorEntry]) -> _Layer:
        """Allocate the tensors and queue the reads that fill them."""
        entries = sorted(entries, key=lambda entry: (entry.path, entry.offset_bytes))
        targets = self._targets(entries)
        tensors = {
            entry.name: targets[entry.name].view(torch_dtype(entry)).reshape(entry.shape) for entry in entries
        }
        # Memory that is used again may still be read by work that was queued before: copies wait for it.
        ready = torch.cuda.current_stream(self._device).record_event() if self._on_card else None
        reads = [self._pool.submit(self._read, span, ready) for span in _spans(_pieces(entries, targets))]
        return _Layer(tensors, reads)

    @property
    def _on_card(self) -> bool:
        return self._device.type == "cuda"

    def _targets(self, entries: Sequence[TensorEntry]) -> dict[str, torch.Tensor]:
        """uint8 memory for every tensor."""

        def empty(size_bytes: int) -> torch.Tensor:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

        def padded(entry: TensorEntry) -> int:
            return -(-entry.size_bytes // _ALIGNMENT) * _ALIGNMENT

        block = empty(sum(padded(entry) for entry in entries if entry.name.endswith(_IN_ONE_BLOCK)))
        targets, used = {}, 0
        for entry in entries:
            if entry.name.endswith(_IN_ONE_BLOCK):
                targets[entry.name] = block[used : used + entry.size_bytes]
                used += padded(entry)
            else:
                targets[entry.name] = empty(entry.size_bytes)
        return targets

    def _read(self, span: list[_Piece], ready: torch.cuda.Event | None) -> None:
        """One read of a file, one copy a piece. Runs on a thread of the pool."""
        buffer = self._buffers.get()
        try:
            begin, end = span[0].offset_bytes, span[-1].end_bytes
            read_into(buffer[: end - begin], span[0].path, begin, span[0].name)
            stream = torch.cuda.Stream(self._device) if ready is not None else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream) if stream else nullcontext():
                if stream is not None and ready is not None:
                    stream.wait_event(ready)
                for piece in span:
                    first = piece.offset_bytes - begin
                    part = buffer[first : first + piece.target.numel()]
                    piece.target.copy_(part, non_blocking=True)
            if stream is not None:
                stream.synchronize()
            self._arrived(sum(piece.target.numel() for piece in span))
        finally:
            self._buffers.put(buffer)


def _pieces(entries: Sequence[TensorEntry], targets: dict[str, torch.Tensor]) -> Iterator[_Piece]:
    """Tensors in order, those larger than a buffer in parts."""
    for entry in entries:
        target = targets[entry.name]
        for first in range(0, entry.size_bytes, BUFFER_BYTES):
            part = target[first : first + BUFFER_BYTES]
            yield _Piece(entry.name, entry.path, entry.offset_bytes + first, part)


def _spans(pieces: Iterator[_Piece]) -> Iterator[list[_Piece]]:
    """Neighbours that one buffer holds."""
    span: list[_Piece] = []
    for piece in pieces:
        if span and (
            piece.path != span[0].path
            or piece.end_bytes - span[0].offset_bytes > BUFFER_BYTES
            or piece.offset_bytes - span[-1].end_bytes > _LARGEST_GAP_BYTES
        ):
            yield span
            span = []
        span.append(piece)
    if span:
        yield span
