"""Embedding lookup from a weight in linear tiles, so that a tied head and its embedding share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from tandem.kernels.jit import kernel
from tandem.kernels.lanes import LANES, fma, load, load_nibbles, store


def embed(
    token_ids: np.ndarray, values: np.ndarray, scale: np.ndarray, minimum: np.ndarray, out: np.ndarray
) -> None:
    """out float32 [M, H] = rows of the table. token_ids int64 [M]; weight as in ``linear/cpu.py``."""
    _embed(token_ids, values, scale, minimum, out)


def _gather(
    values: Any, scale: Any, minimum: Any, tile: Any, lane: Any, scratch: Any, out: Any, row: Any
) -> Any:
    raise NotImplementedError("compiled code only")


def _gather_dense(
    values: Any, scale: Any, minimum: Any, tile: Any, lane: Any, scratch: Any, out: Any, row: Any
) -> Any:
    K = values.shape[1]
    for k in range(K):
        store(scratch, 0, load(values, (tile * K + k) * LANES))
        out[row, k] = scratch[lane]


def _gather_int8(
    values: Any, scale: Any, minimum: Any, tile: Any, lane: Any, scratch: Any, out: Any, row: Any
) -> Any:
    K, G = values.shape[1], scale.shape[1]
    for k in range(K):
        group = (tile * G + k * G // K) * LANES
        value = fma(load(scale, group), load(values, (tile * K + k) * LANES), load(minimum, group))
        store(scratch, 0, value)
        out[row, k] = scratch[lane]


def _gather_nibbles(
    values: Any, scale: Any, minimum: Any, tile: Any, lane: Any, scratch: Any, out: Any, row: Any
) -> Any:
    half_K, G = values.shape[1], scale.shape[1]
    for j in range(half_K):
        group = (tile * G + j * G // half_K) * LANES
        low, high = load_nibbles(values, (tile * half_K + j) * LANES)
        store(scratch, 0, fma(load(scale, group), low, load(minimum, group)))
        out[row, 2 * j] = scratch[lane]
        store(scratch, 0, fma(load(scale, group), high, load(minimum, group)))
        out[row, 2 * j + 1] = scratch[lane]


@overload(_gather)
def _gather_for(
    values: Any, scale: Any, minimum: Any, tile: Any, lane: Any, scratch: Any, out: Any, row: Any
) -> Any:
    if values.dtype == types.uint8:
        return _gather_nibbles
    return _gather_int8 if values.dtype == types.int8 else _gather_dense


@kernel
def _embed(token_ids: Any, values: Any, scale: Any, minimum: Any, out: Any) -> None:
    scratch = np.empty(LANES, np.float32)
    for m in range(token_ids.size):
        tile, lane = divmod(token_ids[m], LANES)
        _gather(values, scale, minimum, tile, lane, scratch, out, m)
