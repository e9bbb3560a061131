"""Linear operators in numba, the same bits for any number of rows.

Every output element is one chain of fused multiply-adds over the input features in ascending order,
``acc = fma(weight[n, k], x[m, k], acc)`` from zero, with bias and residual added at the end. Lanes run
over output features, so nothing is reduced across lanes, and how rows are blocked cannot matter.

Weights are stored for this order, in tiles of LANES output features (``quant/tiles.py`` makes them)::

    values   float32 | int16 (half) | uint16 (bfloat16) | int8  [T, K, LANES]
             or uint8 [T, K / 2, LANES]: the low nibble of row j is feature 2j, the high one 2j + 1
    scale    float32 | int16 (half) [T, G, LANES], G groups along K; weight = scale · value + minimum
    minimum  of scale's type and shape     (both are empty for the float types)

For few rows, weights go from memory to registers and are used for a block of rows there. For many, a piece of
a pair of tiles is dequantized into a scratch that stays in the first-level cache and is read by every block;
the blocks' sums wait in memory for the next piece, which changes no bit of them.

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
from tandem.kernels.lanes import (
    BLOCK_ROWS,
    LANES,
    fma,
    load,
    load_nibbles,
    outer_fma,
    reload,
    spill,
    store,
    zeros,
)

_STORE, _ADD, _GATED = 0, 1, 2
_NO_BIAS = np.empty(0, np.float32)
_BLOCK_VECTORS = 2 * BLOCK_ROWS
_ROW_BUCKETS = tuple(sorted({1, (BLOCK_ROWS + 1) // 2, BLOCK_ROWS}))
_DIRECT_ROWS = 2 * BLOCK_ROWS
"""Up to here, reading the weights once per block of rows is as fast as dequantizing them into a scratch."""

_PIECE = 96
"""Input features dequantized at once for many rows: 15 KB with their part of the panel, so that two threads
of one core find both in a first-level cache of 32 KB (96 to 2048: within 3 % on a Zen 5, 2026-11-30)."""


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


def _fill_piece(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    """Input features [first, end) of tiles ``tile`` and ``tile`` + 1 in fp32: an array, and where in it the
    two lie, [end - first, LANES] each. ``scratch`` has room for both from ``offset`` on."""
    raise NotImplementedError("compiled code only")


def _fill_piece_as_is(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    K = values.shape[1]
    return values, (tile * K + first) * LANES, (tile * K + K + first) * LANES


def _fill_piece_float(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    K = values.shape[1]
    target = offset
    for t in range(2):
        for k in range(first, end):
            store(scratch, target, load(values, ((tile + t) * K + k) * LANES))
            target += LANES
    return scratch, offset, offset + (end - first) * LANES


def _fill_piece_int8(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    K, G = values.shape[1], scale.shape[1]
    group = K // G
    target = offset
    for t in range(2):
        for g in range(first // group, end // group):
            group_scale = load(scale, ((tile + t) * G + g) * LANES)
            group_minimum = load(minimum, ((tile + t) * G + g) * LANES)
            for k in range(g * group, (g + 1) * group):
                value = load(values, ((tile + t) * K + k) * LANES)
                store(scratch, target, fma(group_scale, value, group_minimum))
                target += LANES
    return scratch, offset, offset + (end - first) * LANES


def _fill_piece_nibbles(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    half_K, G = values.shape[1], scale.shape[1]
    half_group = half_K // G
    group = 2 * half_group
    target = offset
    for t in range(2):
        for g in range(first // group, end // group):
            group_scale = load(scale, ((tile + t) * G + g) * LANES)
            group_minimum = load(minimum, ((tile + t) * G + g) * LANES)
            for j in range(g * half_group, (g + 1) * half_group):
                low, high = load_nibbles(values, ((tile + t) * half_K + j) * LANES)
                store(scratch, target, fma(group_scale, low, group_minimum))
                store(scratch, target + LANES, fma(group_scale, high, group_minimum))
                target += 2 * LANES
    return scratch, offset, offset + (end - first) * LANES


@overload(_fill_piece)
def _fill_piece_for(
    values: Any, scale: Any, minimum: Any, tile: Any, first: Any, end: Any, scratch: Any, offset: Any
) -> Any:
    if values.dtype == types.uint8:
        return _fill_piece_nibbles
    if values.dtype == types.int8:
        return _fill_piece_int8
    return _fill_piece_as_is if values.dtype == types.float32 else _fill_piece_float


@kernel
def _to_line(array: Any) -> Any:
    """First element of a float32 array that begins a cache line (64 bytes, one vector)."""
    return (-(array.ctypes.data // 4)) % LANES


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
def _many(x: Any, values: Any, scale: Any, minimum: Any, out: Any, bias: Any, mode: Any, piece: Any) -> None:
    M, K = x.shape
    blocks = (M + BLOCK_ROWS - 1) // BLOCK_ROWS
    panel = np.empty(blocks * K * BLOCK_ROWS, np.float32)
    for b in numba.prange(blocks):
        _pack(x, b * BLOCK_ROWS, BLOCK_ROWS, panel, b * K * BLOCK_ROWS)
    for pair in numba.prange(values.shape[0] // 2):
        sums = np.zeros((blocks, _BLOCK_VECTORS * LANES), np.float32)
        scratch = np.empty((2 * piece + 1) * LANES, np.float32)
        offset = _to_line(scratch)
        for first in range(0, K, piece):
            end = min(first + piece, K)
            dense, even, odd = _fill_piece(values, scale, minimum, 2 * pair, first, end, scratch, offset)
            for b in range(blocks):
                block = reload(sums[b], _BLOCK_VECTORS)
                place = (b * K + first) * BLOCK_ROWS
                for k in range(end - first):
                    columns = (load(dense, even + k * LANES), load(dense, odd + k * LANES))
                    block = outer_fma(block, columns, panel, place + k * BLOCK_ROWS, 1)
                if end < K:
                    spill(block, sums[b])
                else:
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
        group = x.shape[1] // scale.shape[1] if scale.size else 1
        piece = max(_PIECE // group, 1) * group
        _many(x, values, scale, minimum, out, bias, mode, piece)
        return
    for first in range(0, rows, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, rows)
        bucket = next(size for size in _ROW_BUCKETS if size >= end - first)
        _FEW[bucket](x[first:end], values, scale, minimum, out[first:end], bias, mode)
