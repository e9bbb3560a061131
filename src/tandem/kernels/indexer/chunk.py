"""Scores of every visible pool for a prefill chunk: some rows' heads side by side on the matrix unit.

A row's sums do not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.kernels.indexer.triton import FEWEST_FUSED
from tandem.kernels.mla.operands import Where

_ROWS, _BLOCK, _WARPS = 4, 128, 8
"""Rows and pools of a program: pool keys are read once for so many rows."""


@triton.jit
def _score_chunk(  # type: ignore[no-untyped-def]
    q_ptr,
    weights_ptr,
    pools_ptr,
    positions_ptr,
    table_ptr,
    scores_ptr,
    rows,
    max_pools,
    weights_pitch,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE_POOLS: tl.constexpr,
    POOL: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    first, first_row = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64) * ROWS
    row = first_row + tl.arange(0, ROWS)
    visible = (tl.load(positions_ptr + row, mask=row < rows, other=-1) + 1) // POOL
    most = tl.max(visible, 0)
    if (most <= COUNT) | (first >= most):
        return
    pool = first + tl.arange(0, BLOCK)
    live = pool < most
    page = tl.load(table_ptr + pool // PAGE_POOLS, mask=live, other=0)
    at = page.to(tl.int64) * PAGE_POOLS + pool % PAGE_POOLS
    column, pair = tl.arange(0, D), tl.arange(0, ROWS * HEADS)  # a row's heads one after the other
    there = first_row + pair // HEADS < rows
    keys = tl.trans(tl.load(pools_ptr + at[:, None] * D + column[None, :], mask=live[:, None], other=0))
    q_at = q_ptr + (first_row * HEADS + pair)[:, None] * D + column[None, :]
    overlap = tl.maximum(tl.dot(tl.load(q_at, mask=there[:, None], other=0), keys), 0.0)
    weights_at = weights_ptr + (first_row + pair // HEADS) * weights_pitch + pair % HEADS
    weighted = overlap * tl.load(weights_at, mask=there, other=0)[:, None]
    sums = tl.sum(tl.reshape(weighted, (ROWS, HEADS, BLOCK)), 1)
    seen = (visible > COUNT)[:, None] & (pool[None, :] < visible[:, None])
    tl.store(scores_ptr + row[:, None] * max_pools + pool[None, :], sums * scale, mask=seen)


def score_chunk(
    q: torch.Tensor, head_weights: torch.Tensor, pools: torch.Tensor, where: Where, scores: torch.Tensor
) -> None:
    """q fp16 [C, H, D], head_weights fp32 [C, H] (rows may lie apart), pools fp16 [all pools, D]; all rows of
    the first run of ``where``.

    -> scores fp32 [C, max_pools] of the pools a row sees; untouched where it attends to all of them anyway.
    """
    rows, heads, D = q.shape
    _score_chunk[(triton.cdiv(scores.shape[1], _BLOCK), triton.cdiv(rows, _ROWS))](
        q,
        head_weights,
        pools,
        where.positions,
        where.page_tables,
        scores,
        rows,
        scores.shape[1],
        head_weights.stride(0),
        D**-0.5 * heads**-0.5,
        HEADS=heads,
        D=D,
        PAGE_POOLS=where.page_tokens // where.pool_tokens,
        POOL=where.pool_tokens,
        COUNT=where.chosen.shape[1],
        BLOCK=_BLOCK,
        ROWS=_ROWS,
        num_warps=_WARPS,
        enable_fp_fusion=heads >= FEWEST_FUSED,
    )
