"""Absorbed latent attention of rows over the tokens they chose, in parts that ``unabsorb`` joins.

Every row has programs of its own and its tokens are cut at fixed places: its bits depend on no other row.
Queries enter the matrix unit as two fp16 halves (high and low), latents as they are cached.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.kernels.mla.operands import Parts, Where


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q_ptr,
    cache_ptr,
    scales_ptr,
    positions_ptr,
    run_of_row_ptr,
    tables_ptr,
    chosen_ptr,
    attended_ptr,
    maxima_ptr,
    totals_ptr,
    max_pages,
    parts,
    HEADS: tl.constexpr,
    L: tl.constexpr,
    PAGE: tl.constexpr,
    POOL: tl.constexpr,
    COUNT: tl.constexpr,
    PART_TOKENS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    Q8: tl.constexpr,
    TWO_HALVES: tl.constexpr,
):
    part, heads0, row = tl.program_id(0), tl.program_id(1) * BLOCK_H, tl.program_id(2).to(tl.int64)
    position = tl.load(positions_ptr + row)
    run = tl.load(run_of_row_ptr + row)
    pools = (position + 1) // POOL
    sparse = pools > COUNT
    length = tl.where(sparse, COUNT * POOL + position + 1 - pools * POOL, position + 1)
    head = heads0 + tl.arange(0, BLOCK_H)
    column = tl.arange(0, L)
    out = (row * parts + part) * HEADS + head
    begin = part * PART_TOKENS
    if begin >= length:
        tl.store(totals_ptr + out, tl.zeros([BLOCK_H], tl.float32))
        return
    q = tl.load(q_ptr + (row * HEADS + head)[:, None] * L + column[None, :])
    q_high = q.to(tl.float16)
    q_low = (q - q_high.to(tl.float32)).to(tl.float16)
    acc = tl.zeros([BLOCK_H, L], tl.float32)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    for start in range(begin, tl.minimum(begin + PART_TOKENS, length), BLOCK_T):
        j = start + tl.arange(0, BLOCK_T)
        live = j < length
        pool = tl.load(chosen_ptr + row * COUNT + j // POOL, mask=live & sparse & (j < COUNT * POOL), other=0)
        selected = tl.where(j < COUNT * POOL, pool * POOL + j % POOL, pools * POOL + j - COUNT * POOL)
        at = tl.where(sparse, selected, j)
        page = tl.load(tables_ptr + run * max_pages + at // PAGE, mask=live, other=0)
        token = page.to(tl.int64) * PAGE + at % PAGE
        latents = tl.load(cache_ptr + token[:, None] * L + column[None, :], mask=live[:, None], other=0)
        if Q8:
            scale_at = scales_ptr + token[:, None] * (L // 32) + column[None, :] // 32
            scales = tl.load(scale_at, mask=live[:, None], other=0)
            latents = (latents.to(tl.float32) * scales.to(tl.float32)).to(tl.float16)
        keys = tl.trans(latents)
        scores = tl.dot(q_high, keys)
        if TWO_HALVES:
            scores += tl.dot(q_low, keys)
        scores = tl.where(live[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        factor = tl.exp(top - new_top)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None] + tl.dot(weights.to(tl.float16), latents)
        top = new_top
    tl.store(attended_ptr + out[:, None] * L + column[None, :], acc)
    tl.store(maxima_ptr + out, top)
    tl.store(totals_ptr + out, total)


def attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    scales: torch.Tensor | None,
    where: Where,
    out: Parts,
    part_tokens: int,
    block_heads: int,
    *,
    two_halves: bool = True,
) -> None:
    """q fp32 [R, H, L], scaled; cache fp16 [tokens, L], or int8 with ``scales`` fp16 [tokens, L/32] and q
    rotated by Hadamard-32. two_halves False: q is rounded to fp16, for chunks.
    """
    rows, heads, latent = q.shape
    parts = out.maxima.shape[1]
    _attend[(parts, heads // block_heads, rows)](
        q,
        cache,
        scales if scales is not None else cache,
        where.positions,
        where.run_of_row,
        where.page_tables,
        where.chosen,
        out.attended,
        out.maxima,
        out.totals,
        where.page_tables.shape[1],
        parts,
        HEADS=heads,
        L=latent,
        PAGE=where.page_tokens,
        POOL=where.pool_tokens,
        COUNT=where.chosen.shape[1],
        PART_TOKENS=part_tokens,
        BLOCK_T=32,
        BLOCK_H=block_heads,
        Q8=scales is not None,
        TWO_HALVES=two_halves,
        num_warps=8,
        num_stages=2,
    )
