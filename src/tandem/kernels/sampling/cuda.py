"""Sampling on a CUDA card: requests and results lie in pinned host memory, logits stay where they are.

The kernel reads a row's request, edits and mask from the host and writes its token there, so that a step
costs one launch and one wait, and nothing is copied. Alphabet: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import numpy as np
import torch

from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module
from tandem.kernels.sampling.operands import (
    MOST_LOGPROBS,
    Edits,
    RawLogprobs,
    RowRequest,
    RowResult,
    fraction,
    most_edits,
)

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "sample.cu")
_MOST_ROWS = 16
"""Of one launch."""
_THREADS = 1024
_REQUEST = Struct("=QQ3f10i4x")
"""``Request`` of sample.cu."""
_RESULT = Struct(f"=QiiIiff{MOST_LOGPROBS}i{MOST_LOGPROBS}f")
"""``Result`` of sample.cu."""
_TOKEN = Struct("=QiiIiff")
"""What a result begins with; the rest are logprobs."""


class CudaRowSampler:
    """Draws tokens of rows on one card, one call at a time. Keeps nothing of them."""

    def __init__(self, vocab_size: int, device: torch.device, cache_dir: Path | None) -> None:
        self.module: KernelModule = kernel_module(SOURCE, device, cache_dir)
        self._vocab_size = vocab_size
        self._device = device
        self._room = most_edits(vocab_size)
        words = -(-vocab_size // 32)

        def pinned(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.uint8, pin_memory=True)

        self._requests = pinned(_MOST_ROWS, _REQUEST.size)
        self._results = pinned(_MOST_ROWS, _RESULT.size)
        self._ids = pinned(self._room, 4)
        self._amounts = pinned(self._room, 4)
        self._masks = pinned(_MOST_ROWS, 4 * words)
        self._replaced = torch.zeros(self._room, device=device)
        self._request_bytes = self._requests.flatten().numpy().data
        self._result_bytes = self._results.flatten().numpy().data
        self._id_list = self._ids.numpy().view(np.int32)[:, 0]
        self._amount_list = self._amounts.numpy().view(np.float32)[:, 0]
        self._mask_bytes = self._masks.numpy()

    def sample(self, logits: torch.Tensor, requests: Sequence[RowRequest | None]) -> list[RowResult | None]:
        """logits fp32 [R, V] on the card, the same after it; None asks nothing of a row.

        Rows are contiguous and begin at multiples of 16 bytes. Waits for the current stream. A row's result
        depends on that row and its request alone. Rows go in parts where there are more than 16, or their
        edits are more than one row can have.
        """
        results: list[RowResult | None] = []
        while len(results) < len(requests):
            part = requests[len(results) :]
            count = self.launch(logits[len(results) :], part)
            torch.cuda.current_stream(self._device).synchronize()
            results += (self._read(row, request) for row, request in enumerate(part[:count]))
        return results

    def launch(self, logits: torch.Tensor, requests: Sequence[RowRequest | None]) -> int:
        """Queue the draws of the first rows, as many as there is room for; returns how many."""
        if logits.data_ptr() % 16 or logits.stride(0) % 4 or logits.stride(1) != 1:
            raise ValueError("rows of logits must be contiguous and begin at multiples of 16 bytes")
        rows = self._write(requests)
        masked = any(request is not None and request.mask is not None for request in requests[:rows])
        self.module.launch(
            "sample",
            (rows, 1, 1),
            (_THREADS, 1, 1),
            logits,
            self._requests,
            self._ids,
            self._amounts,
            self._masks,
            self._replaced,
            self._results,
            logits.stride(0),
            self._vocab_size,
            shared_bytes=self._masks.shape[1] if masked else 0,
        )
        return rows

    def _write(self, requests: Sequence[RowRequest | None]) -> int:
        """Describe the first requests to the kernel; returns how many there is room for."""
        used = 0
        for row, request in enumerate(requests[:_MOST_ROWS]):
            if request is None:
                self._request_bytes[row * _REQUEST.size : (row + 1) * _REQUEST.size] = _ABSENT
                continue
            edits = request.edits or _NO_EDITS
            if used + edits.count > self._room:
                return row
            _REQUEST.pack_into(self._request_bytes, row * _REQUEST.size, *_described(request, edits, used))
            if request.mask is not None:
                self._write_mask(row, request.mask)
            used = self._write_edits(edits, used) if request.edits else used
        return min(_MOST_ROWS, len(requests))

    def _write_edits(self, edits: Edits, used: int) -> int:
        for ids, amounts in (
            (edits.seen, None),
            (edits.output, edits.output_minus),
            (edits.biased, edits.bias),
            (edits.held, None),
        ):
            end = used + len(ids)
            self._id_list[used:end] = ids
            if amounts is not None:
                self._amount_list[used:end] = amounts
            used = end
        return used

    def _write_mask(self, row: int, mask: bytes) -> None:
        into = self._mask_bytes[row]
        given = np.frombuffer(mask, dtype=np.uint8)[: into.shape[0]]
        into[: given.shape[0]] = given
        into[given.shape[0] :] = 0

    def _read(self, row: int, request: RowRequest | None) -> RowResult | None:
        if request is None:
            return None
        at, top = row * _RESULT.size, request.params.logprobs
        total, token, bad, threshold, last_tie, peak, logit = _TOKEN.unpack_from(self._result_bytes, at)
        if token < 0:
            return RowResult(token, bad)
        logprobs = None
        if top is not None:
            best = _RESULT.unpack_from(self._result_bytes, at)[-2 * MOST_LOGPROBS :]
            count = min(top, self._vocab_size)
            pairs = zip(best[:count], best[MOST_LOGPROBS : MOST_LOGPROBS + count], strict=True)
            logprobs = RawLogprobs(peak, total, logit, tuple(pairs))
        return RowResult(token, 0, threshold, last_tie, logprobs)


_NO_EDITS = Edits()
_ABSENT = _REQUEST.pack(0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0)


def _described(request: RowRequest, edits: Edits, first: int) -> tuple[float, ...]:
    params = request.params
    if params.logprobs is not None and params.logprobs > MOST_LOGPROBS:
        raise ValueError(f"{params.logprobs} logprobs; at most {MOST_LOGPROBS} a token")
    return (
        fraction(request.point),
        0 if params.top_p >= 1.0 else max(fraction(params.top_p), 1),
        float(request.tempering),
        float(request.reach),
        edits.penalty,
        params.top_k,
        request.greedy,
        -1 if params.logprobs is None else params.logprobs,
        request.mask is not None,
        0,
        first,
        len(edits.seen),
        len(edits.output),
        len(edits.biased),
        len(edits.held),
    )
