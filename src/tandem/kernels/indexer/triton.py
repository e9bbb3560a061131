"""Scores of every visible pool for every row, on the matrix unit; the queries enter as two fp16 halves."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.kernels.mla.operands import Where

FEWEST_FUSED = 16
"""Fewer heads lie in lanes alone, so that their sum begins with a shuffle. Its addition, fused with a lane's
own product, would round differently in every lane, and all of them write the sum.
"""


@triton.jit
def _score(  # type: ignore[no-untyped-def]
    q_ptr,
    weights_ptr,
    pools_ptr,
    positions_ptr,
    run_of_row_ptr,
    tables_ptr,
    scores_ptr,
    max_pages,
    max_pools,
    weights_pitch,
    scale,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE_POOLS: tl.constexpr,
    POOL: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first, row = tl.program_id(0) * BLOCK, tl.program_id(1).to(tl.int64)
    visible = (tl.load(positions_ptr + row) + 1) // POOL
    if (visible <= COUNT) | (first >= visible):
        return
    run = tl.load(run_of_row_ptr + row)
    pool = first + tl.arange(0, BLOCK)
    live = pool < visible
    page = tl.load(tables_ptr + run * max_pages + pool // PAGE_POOLS, mask=live, other=0)
    at = page.to(tl.int64) * PAGE_POOLS + pool % PAGE_POOLS
    column, head = tl.arange(0, D), tl.arange(0, HEADS)
    keys = tl.trans(tl.load(pools_ptr + at[:, None] * D + column[None, :], mask=live[:, None], other=0))
    q = tl.load(q_ptr + (row * HEADS + head)[:, None] * D + column[None, :])
    high = q.to(tl.float16)
    low = (q - high.to(tl.float32)).to(tl.float16)
    overlap = tl.maximum(tl.dot(high, keys) + tl.dot(low, keys), 0.0)
    weights = tl.load(weights_ptr + row * weights_pitch + head)
    tl.store(scores_ptr + row * max_pools + pool, tl.sum(overlap * weights[:, None], 0) * scale, mask=live)


def score(
    q: torch.Tensor, head_weights: torch.Tensor, pools: torch.Tensor, where: Where, scores: torch.Tensor
) -> None:
    """q fp32 [R, H, D], head_weights fp32 [R, H] (rows may lie apart), pools fp16 [all pools, D].

    -> scores fp32 [R, max_pools] of the pools a row sees; untouched where it attends to all of them anyway.
    """
    rows, heads, D = q.shape
    block = 128
    _score[(triton.cdiv(scores.shape[1], block), rows)](
        q,
        head_weights,
        pools,
        where.positions,
        where.run_of_row,
        where.page_tables,
        scores,
        where.page_tables.shape[1],
        scores.shape[1],
        head_weights.stride(0),
        D**-0.5 * heads**-0.5,
        HEADS=heads,
        D=D,
        PAGE_POOLS=where.page_tokens // where.pool_tokens,
        POOL=where.pool_tokens,
        COUNT=where.chosen.shape[1],
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=heads >= FEWEST_FUSED,
    )
