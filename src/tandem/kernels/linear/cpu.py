"""Linear operators in numba, the same bits for any number of rows.

Every output element is one chain of fused multiply-adds over the input features in ascending order,
``acc = fma(weight[n, k], x[m, k], acc)`` from zero, with bias and residual added at the end. Lanes run
over output features, so nothing is reduced across lanes, and how rows are blocked cannot matter.

Weights are stored for this order, in tiles of LANES output features (``quant/tiles.py`` makes them)::

    values   float32 | int16 (half) | uint16 (bfloat16) | int8  [T, K, LANES]
             or uint8 [T, K / 2, LANES]: the low nibble of row j is feature 2j, the high one 2j + 1
    scale    float32 | int16 (half) [T, G, LANES], G groups along K; weight = scale · value + minimum
    minimum  of scale's type and shape     (both are empty for the float types)

For few rows, weights go from memory to registers and are used for a block of rows there. For many, a pair of
tiles is dequantized into a scratch that stays in the second-level cache and is read by every block.

Alphabet: M rows, K input features, N output features, T tiles (even), R rows of a register block.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from tandem.kernels.elementary import silu
from tandem.kernels.jit import kernel, parallel_kernel
from tandem.kernels.lanes import BLOCK_ROWS, LANES, fma, load, load_nibbles, outer_fma, spill, store, zeros

_STORE, _ADD, _GATED = 0, 1, 2
_NO_BIAS = np.empty(0, np.float32)
_BLOCK_VECTORS = 2 * BLOCK_ROWS
_ROW_BUCKETS = tuple(sorted({1, (BLOCK_ROWS + 1) // 2, BLOCK_ROWS}))
_DIRECT_ROWS = 2 * BLOCK_ROWS
"""Up to here, reading the weights once per block of rows is as fast as dequantizing them into a scratch."""


def linear(
    x: np.ndarray,
    values: np.ndarray,
    scale: np.ndarray,
    minimum: np.ndarray,
    out: np.ndarray,
    bias: np.ndarray,
    accumulate: bool,
) -> None:
    """out = x · weightᵀ + bias (+ out, if ``accumulate``). ``bias`` is float32 [N] or empty.

    x float32 [M, K] and out float32 [M, N] contiguous; N may end inside the last tiles.
    """
    _run(x, values, scale, minimum, out, bias, _ADD if accumulate else _STORE)


def gated_linear(
    x: np.ndarray, values: np.ndarray, scale: np.ndarray, minimum: np.ndarray, out: np.ndarray
) -> None:
    """SwiGLU with gate and up in one weight, tile by tile in turn: even tiles gate, odd tiles up.

    x float32 [M, K], out float32 [M, N].
    """
    _run(x, values, scale, minimum, out, _NO_BIAS, _GATED)


def _accumulate(
    block: Any, values: Any, scale: Any, minimum: Any, tile: Any, panel: Any, offset: Any, rows: Any
) -> Any:
    """Add to ``block`` (R rows × 2 tiles) the products of two tiles from ``tile`` on with a panel [K, R]."""
    raise NotImplementedError("compiled code only")


def _accumulate_dense(
    block: Any, values: Any, scale: Any, minimum: Any, tile: Any, panel: Any, offset: Any, rows: Any
) -> Any:
    K = values.shape[1]
    first = tile * K * LANES
    second = first + K * LANES
    for k in range(K):
        columns = (load(values, first + k * LANES), load(values, second + k * LANES))
        block = outer_fma(block, columns, panel, offset + k * rows, 1)
    return block


def _accumulate_int8(
    block: Any, values: Any, scale: Any, minimum: Any, tile: Any, panel: Any, offset: Any, rows: Any
) -> Any:
    K, G = values.shape[1], scale.shape[1]
    group = K // G
    first = tile * K * LANES
    second = first + K * LANES
    for g in range(G):
        scale_a = load(scale, (tile * G + g) * LANES)
        scale_b = load(scale, (tile * G + G + g) * LANES)
        minimum_a = load(minimum, (tile * G + g) * LANES)
        minimum_b = load(minimum, (tile * G + G + g) * LANES)
        for k in range(g * group, (g + 1) * group):
            columns = (
                fma(scale_a, load(values, first + k * LANES), minimum_a),
                fma(scale_b, load(values, second + k * LANES), minimum_b),
            )
            block = outer_fma(block, columns, panel, offset + k * rows, 1)
    return block


def _accumulate_nibbles(
    block: Any, values: Any, scale: Any, minimum: Any, tile: Any, panel: Any, offset: Any, rows: Any
) -> Any:
    half_K, G = values.shape[1], scale.shape[1]
    half_group = half_K // G
    first = tile * half_K * LANES
    second = first + half_K * LANES
    for g in range(G):
        scale_a = load(scale, (tile * G + g) * LANES)
        scale_b = load(scale, (tile * G + G + g) * LANES)
        minimum_a = load(minimum, (tile * G + g) * LANES)
        minimum_b = load(minimum, (tile * G + G + g) * LANES)
        for j in range(g * half_group, (g + 1) * half_group):
            low_a, high_a = load_nibbles(values, first + j * LANES)
            low_b, high_b = load_nibbles(values, second + j * LANES)
            columns = (fma(scale_a, low_a, minimum_a), fma(scale_b, low_b, minimum_b))
            block = outer_fma(block, columns, panel, offset + 2 * j * rows, 1)
            columns = (fma(scale_a, high_a, minimum_a), fma(scale_b, high_b, minimum_b))
            block = outer_fma(block, columns, panel, offset + (2 * j + 1) * rows, 1)
    return block


@overload(_accumulate)
def _accumulate_for(
    block: Any, values: Any, scale: Any, minimum: Any, tile: Any, panel: Any, offset: Any, rows: Any
) -> Any:
    if values.dtype == types.uint8:
        return _accumulate_nibbles
    return _accumulate_int8 if values.dtype == types.int8 else _accumulate_dense


def _dense_pair(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    """Tiles ``tile`` and ``tile`` + 1 in fp32: (array [T, K, LANES], the pair's place in it)."""
    raise NotImplementedError("compiled code only")


def _dense_pair_as_is(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    return values, tile


def _dense_pair_float(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    K = values.shape[1]
    scratch = np.empty((2, K, LANES), np.float32)
    for row in range(2 * K):
        store(scratch, row * LANES, load(values, (tile * K + row) * LANES))
    return scratch, 0


def _dense_pair_int8(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    K, G = values.shape[1], scale.shape[1]
    group = K // G
    scratch = np.empty((2, K, LANES), np.float32)
    for g in range(2 * G):
        group_scale = load(scale, (tile * G + g) * LANES)
        group_minimum = load(minimum, (tile * G + g) * LANES)
        for row in range(g * group, (g + 1) * group):
            value = load(values, (tile * K + row) * LANES)
            store(scratch, row * LANES, fma(group_scale, value, group_minimum))
    return scratch, 0


def _dense_pair_nibbles(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    half_K, G = values.shape[1], scale.shape[1]
    half_group = half_K // G
    scratch = np.empty((2, 2 * half_K, LANES), np.float32)
    for g in range(2 * G):
        group_scale = load(scale, (tile * G + g) * LANES)
        group_minimum = load(minimum, (tile * G + g) * LANES)
        for row in range(g * half_group, (g + 1) * half_group):
            low, high = load_nibbles(values, (tile * half_K + row) * LANES)
            store(scratch, 2 * row * LANES, fma(group_scale, low, group_minimum))
            store(scratch, (2 * row + 1) * LANES, fma(group_scale, high, group_minimum))
    return scratch, 0


@overload(_dense_pair)
def _dense_pair_for(values: Any, scale: Any, minimum: Any, tile: Any) -> Any:
    if values.dtype == types.uint8:
        return _dense_pair_nibbles
    if values.dtype == types.int8:
        return _dense_pair_int8
    return _dense_pair_as_is if values.dtype == types.float32 else _dense_pair_float


@kernel
def _pack(x: Any, first: Any, rows: Any, panel: Any, offset: Any) -> None:
    """Rows [first, first + rows) of x [M, K] -> panel [K, rows] at ``offset``; rows past M become zero."""
    M, K = x.shape
    for r in range(rows):
        if first + r < M:
            for k in range(K):
                panel[offset + k * rows + r] = x[first + r, k]
        else:
            for k in range(K):
                panel[offset + k * rows + r] = np.float32(0.0)


@kernel
def _finish(block: Any, out: Any, bias: Any, mode: Any, tile: Any, first: Any, rows: Any) -> None:
    M, N = out.shape
    sums = np.empty((rows, 2 * LANES), np.float32)
    spill(block, sums)
    column, width = tile * LANES, 2 * LANES
    if mode == _GATED:
        column, width = tile // 2 * LANES, LANES
        for r in range(rows):
            gate, up = load(sums, 2 * r * LANES), load(sums, (2 * r + 1) * LANES)
            store(sums, 2 * r * LANES, silu(gate) * up)
    width = min(width, N - column)
    for r in range(min(rows, M - first)):
        if bias.size:
            for lane in range(width):
                sums[r, lane] += bias[column + lane]
        if mode == _ADD:
            for lane in range(width):
                sums[r, lane] += out[first + r, column + lane]
        for lane in range(width):
            out[first + r, column + lane] = sums[r, lane]


def _make_few(rows: int) -> Any:
    vectors = 2 * rows

    @parallel_kernel
    def few(x: Any, values: Any, scale: Any, minimum: Any, out: Any, bias: Any, mode: Any) -> None:
        panel = np.empty(x.shape[1] * rows, np.float32)
        _pack(x, 0, rows, panel, 0)
        for pair in numba.prange(values.shape[0] // 2):
            block = _accumulate(zeros(vectors), values, scale, minimum, 2 * pair, panel, 0, rows)
            _finish(block, out, bias, mode, 2 * pair, 0, rows)

    return few


_FEW = {rows: _make_few(rows) for rows in _ROW_BUCKETS}


@parallel_kernel
def _many(x: Any, values: Any, scale: Any, minimum: Any, out: Any, bias: Any, mode: Any) -> None:
    M, K = x.shape
    blocks = (M + BLOCK_ROWS - 1) // BLOCK_ROWS
    panel = np.empty(blocks * K * BLOCK_ROWS, np.float32)
    for b in numba.prange(blocks):
        _pack(x, b * BLOCK_ROWS, BLOCK_ROWS, panel, b * K * BLOCK_ROWS)
    for pair in numba.prange(values.shape[0] // 2):
        dense, tile = _dense_pair(values, scale, minimum, 2 * pair)
        for b in range(blocks):
            offset, block = b * K * BLOCK_ROWS, zeros(_BLOCK_VECTORS)
            block = _accumulate(block, dense, scale, minimum, tile, panel, offset, BLOCK_ROWS)
            _finish(block, out, bias, mode, 2 * pair, b * BLOCK_ROWS, BLOCK_ROWS)


def _run(
    x: np.ndarray,
    values: np.ndarray,
    scale: np.ndarray,
    minimum: np.ndarray,
    out: np.ndarray,
    bias: np.ndarray,
    mode: int,
) -> None:
    rows = x.shape[0]
    if rows > _DIRECT_ROWS:
        _many(x, values, scale, minimum, out, bias, mode)
        return
    for first in range(0, rows, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, rows)
        bucket = next(size for size in _ROW_BUCKETS if size >= end - first)
        _FEW[bucket](x[first:end], values, scale, minimum, out[first:end], bias, mode)
