"""Attention over paged keys and values in numba, the same bits for any number of rows.

A score is a chain of fused multiply-adds over the head's dimensions, sixteen tokens to a vector; the sum of
weights runs in sixteen chains by position, then a fixed tree; an output element is a chain over positions in
ascending order. None of it depends on rows beside it, on chunks or on pages. ``reference.py`` draws the pool.

Only positions a row may see are ever multiplied: what else lies in a page (other sequences' leftovers, NaN)
cannot reach a result.

Alphabet: M rows, D head size (a multiple of LANES), R rows of a register block.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tandem.kernels.elementary import exp
from tandem.kernels.jit import kernel, parallel_kernel
from tandem.kernels.lanes import (
    BLOCK_ROWS,
    LANES,
    fma,
    keep_between,
    load,
    load_columns,
    outer_fma,
    put,
    reload,
    spill,
    splat,
    store,
    tree_max,
    tree_sum,
    where_less,
    zeros,
)

_MINUS_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)


def append(
    heads: np.ndarray,
    query_heads: int,
    positions: np.ndarray,
    run_of_row: np.ndarray,
    page_tables: np.ndarray,
    pool: np.ndarray,
    layer: int,
) -> None:
    """Store each row's keys and values at its position.

    heads float32 [M, query_heads + 2·kv_heads, D] (queries, keys, values); positions, run_of_row int32 [M];
    page_tables int32 [runs, max_pages]; pool float32 or int16 (half), its page_tokens a multiple of LANES.
    """
    kernel_ = _append_few if heads.shape[0] <= BLOCK_ROWS else _append_many
    kernel_(heads, query_heads, positions, run_of_row, page_tables, pool, layer)


def attend_rows(
    heads: np.ndarray,
    query_heads: int,
    positions: np.ndarray,
    run_of_row: np.ndarray,
    page_tables: np.ndarray,
    pool: np.ndarray,
    layer: int,
    window: int,
    scale: np.float32,
    out: np.ndarray,
) -> None:
    """Rows of any sequences, each over the keys up to its own position; out float32 [M, query_heads, D]."""
    _attend_rows(heads, query_heads, positions, run_of_row, page_tables, pool, layer, window, scale, out)


def attend_chunk(
    heads: np.ndarray,
    query_heads: int,
    start: int,
    page_table: np.ndarray,
    pool: np.ndarray,
    layer: int,
    window: int,
    scale: np.float32,
    out: np.ndarray,
) -> None:
    """M consecutive rows of one sequence, positions [start, start + M); page_table int32 [max_pages]."""
    _attend_chunk(heads, query_heads, start, page_table, pool, layer, window, scale, out)


@kernel
def _plane(pool: Any, page: Any, layer: Any, kv_head: Any, which: Any) -> Any:
    """Flat offset of one head's keys (``which`` 0) or values (1) in a page."""
    _, layers, kv_heads, _, size = pool.shape
    return (((np.int64(page) * layers + layer) * kv_heads + kv_head) * 2 + which) * size


@kernel
def _append_row(
    heads: Any, m: Any, query_heads: Any, position: Any, page_table: Any, pool: Any, layer: Any
) -> None:
    D, kv_heads = heads.shape[2], pool.shape[2]
    page_tokens = pool.shape[4] // D
    page, token = page_table[position // page_tokens], position % page_tokens
    for h in range(kv_heads):
        keys = _plane(pool, page, layer, h, 0)
        values = keys + page_tokens * D + token * D
        for d in range(D):
            put(pool, keys + d * page_tokens + token, heads[m, query_heads + h, d])
            put(pool, values + d, heads[m, query_heads + kv_heads + h, d])


@kernel
def _append_few(
    heads: Any,
    query_heads: Any,
    positions: Any,
    run_of_row: Any,
    page_tables: Any,
    pool: Any,
    layer: Any,
) -> None:
    for m in range(heads.shape[0]):
        table = page_tables[run_of_row[m]]
        _append_row(heads, m, query_heads, np.int64(positions[m]), table, pool, layer)


@parallel_kernel
def _append_many(
    heads: Any,
    query_heads: Any,
    positions: Any,
    run_of_row: Any,
    page_tables: Any,
    pool: Any,
    layer: Any,
) -> None:
    for m in numba.prange(heads.shape[0]):
        table = page_tables[run_of_row[m]]
        _append_row(heads, m, query_heads, np.int64(positions[m]), table, pool, layer)


@kernel
def _softmax(scores: Any, row: Any, first: Any, end: Any) -> Any:
    """exp(score - largest) in place over [first, end) of a row, both multiples of LANES; returns the sum."""
    base = row * scores.shape[1]
    largest = splat(_MINUS_INFINITY)
    for t in range(first, end, LANES):
        score = load(scores, base + t)
        largest = where_less(largest, score, score, largest)
    top = splat(tree_max(largest))
    total = splat(_ZERO)
    for t in range(first, end, LANES):
        weight = exp(load(scores, base + t) - top)
        store(scores, base + t, weight)
        total = total + weight
    return tree_sum(total)


@kernel
def _add_values(
    sums: Any, row: Any, width: Any, weights: Any, first: Any, end: Any, pool: Any, table: Any, layout: Any
) -> None:
    """sums[row, :width] += weight · value over positions [first, end), one by one."""
    layer, kv_head, page_tokens, D, dimension = layout
    for t in range(first, end):
        plane = _plane(pool, table[t // page_tokens], layer, kv_head, 1)
        value = plane + t % page_tokens * D + dimension
        weight = splat(weights[row, t])
        for i in range(0, width, LANES):
            total = fma(load(pool, value + i), weight, load(sums, row * sums.shape[1] + i))
            store(sums, row * sums.shape[1] + i, total)


def _make_attend(rows: int, span: int, width: int) -> Any:
    """One query head of up to ``rows`` consecutive rows.

    Keys are taken ``span`` vectors of tokens at a time (one where a page ends before that), values ``width``
    vectors of dimensions.
    """
    score_vectors, vectors = rows * span, rows * width

    @kernel
    def attend(
        heads: Any,
        m: Any,
        count: Any,
        head: Any,
        query_heads: Any,
        position: Any,
        table: Any,
        pool: Any,
        layer: Any,
        window: Any,
        scale: Any,
        out: Any,
    ) -> None:
        D, kv_heads = heads.shape[2], pool.shape[2]
        page_tokens = pool.shape[4] // D
        kv_head = head // (query_heads // kv_heads)
        end = position + count
        lowest = max(0, position + 1 - window) if window > 0 else 0
        first_block, blocks = lowest // LANES, (end + LANES - 1) // LANES

        queries = np.zeros(D * rows, np.float32)
        for r in range(count):
            for d in range(D):
                queries[d * rows + r] = heads[m + r, head, d]

        weights = np.empty((rows, (blocks + span) * LANES), np.float32)
        scores = np.empty(score_vectors * LANES, np.float32)
        b = first_block
        while b < blocks:
            t = b * LANES
            keys = _plane(pool, table[t // page_tokens], layer, kv_head, 0) + t % page_tokens
            taken = span if t % page_tokens + span * LANES <= page_tokens else 1
            if taken == span:
                block = zeros(score_vectors)
                for d in range(D):
                    columns = load_columns(pool, keys + d * page_tokens, span)
                    block = outer_fma(block, columns, queries, d * rows, 1)
                spill(block, scores)
            else:
                narrow = zeros(rows)
                for d in range(D):
                    column = (load(pool, keys + d * page_tokens),)
                    narrow = outer_fma(narrow, column, queries, d * rows, 1)
                spill(narrow, scores)
            for r in range(count):
                last = position + r
                low = last + 1 - window if window > 0 else 0
                for v in range(taken):
                    at = t + v * LANES
                    score = load(scores, (r * taken + v) * LANES) * splat(scale)
                    score = keep_between(score, low - at, last + 1 - at, splat(_MINUS_INFINITY))
                    store(weights, r * weights.shape[1] + at, score)
            b += taken

        totals = np.empty(rows, np.float32)
        for r in range(count):
            totals[r] = _softmax(weights, r, first_block * LANES, blocks * LANES)

        common_first = max(0, end - window) if window > 0 else 0
        common_end = position + 1
        sums = np.zeros((rows, width * LANES), np.float32)
        for dimension in range(0, D, width * LANES):
            part = min(width * LANES, D - dimension)
            layout = (layer, kv_head, page_tokens, D, dimension)
            sums[:] = _ZERO
            if part == width * LANES and common_first < common_end:
                for r in range(count):
                    low = max(0, position + r + 1 - window) if window > 0 else 0
                    _add_values(sums, r, part, weights, low, common_first, pool, table, layout)
                block = reload(sums, vectors)
                t = common_first
                while t < common_end:
                    stop = min(common_end, (t // page_tokens + 1) * page_tokens)
                    value = _plane(pool, table[t // page_tokens], layer, kv_head, 1) + dimension
                    for token in range(t, stop):
                        columns = load_columns(pool, value + token % page_tokens * D, width)
                        block = outer_fma(block, columns, weights, token, weights.shape[1])
                    t = stop
                spill(block, sums)
                for r in range(1, count):
                    _add_values(sums, r, part, weights, common_end, common_end + r, pool, table, layout)
            else:
                for r in range(count):
                    low = max(0, position + r + 1 - window) if window > 0 else 0
                    _add_values(sums, r, part, weights, low, position + r + 1, pool, table, layout)
            for r in range(count):
                for i in range(part):
                    out[m + r, head, dimension + i] = sums[r, i] / totals[r]

    return attend


_attend_one = _make_attend(1, 4, 4)
_attend_block = _make_attend(BLOCK_ROWS, 2, 2)


@parallel_kernel
def _attend_rows(
    heads: Any,
    query_heads: Any,
    positions: Any,
    run_of_row: Any,
    page_tables: Any,
    pool: Any,
    layer: Any,
    window: Any,
    scale: Any,
    out: Any,
) -> None:
    for item in numba.prange(heads.shape[0] * query_heads):
        m, head = item // query_heads, item % query_heads
        position, table = np.int64(positions[m]), page_tables[run_of_row[m]]
        _attend_one(heads, m, 1, head, query_heads, position, table, pool, layer, window, scale, out)


@parallel_kernel
def _attend_chunk(
    heads: Any,
    query_heads: Any,
    start: Any,
    page_table: Any,
    pool: Any,
    layer: Any,
    window: Any,
    scale: Any,
    out: Any,
) -> None:
    M = heads.shape[0]
    blocks = (M + BLOCK_ROWS - 1) // BLOCK_ROWS
    # Head by head, so that each core gets early (short) and late (long) rows alike.
    for item in numba.prange(query_heads * blocks):
        head, m = item // blocks, item % blocks * BLOCK_ROWS
        count = min(BLOCK_ROWS, M - m)
        _attend_block(
            heads, m, count, head, query_heads, start + m, page_table, pool, layer, window, scale, out
        )
