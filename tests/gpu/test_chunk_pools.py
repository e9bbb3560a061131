"""Scores of pools for a prefill chunk's rows on a card, against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import DEVICE, NEEDS_CARD, poisoned, relative_error

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from tandem.kernels.indexer.chunk import score_chunk
from tandem.kernels.indexer.reference import score_pools
from tandem.kernels.mla.operands import Where

pytestmark = NEEDS_CARD
POOL, PAGE, D, COUNT, PAGES = 4, 64, 128, 16, 32


def chunk(rows, heads):
    """Queries, head weights that lie apart, pool keys."""
    q = torch.randn(rows, heads, D, device=DEVICE).half()
    weights = torch.randn(rows, heads + 5, device=DEVICE)
    return q, weights[:, :heads], torch.randn(2 * PAGES * PAGE // POOL, D, device=DEVICE).half()


def scores_of(start, q, weights, pools):
    rows = q.shape[0]
    table = (2 * torch.arange(PAGES).flip(0) + 1).int()[None].cuda()
    where = Where(
        torch.arange(start, start + rows, dtype=torch.int32, device=DEVICE),
        torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        table,
        torch.empty(rows, COUNT, dtype=torch.int32, device=DEVICE),
        PAGE,
        POOL,
    )
    scores = poisoned(rows, PAGES * PAGE // POOL)
    score_chunk(q, weights, pools, where, scores)
    return scores, table[0].long()


@pytest.mark.parametrize("heads", [4, 32])
@pytest.mark.parametrize(("start", "rows"), [(0, 300), (57, 9), (1000, 513), (2046, 2)])
def test_scores_equal_the_reference(heads, start, rows):
    q, weights, pools = chunk(rows, heads)
    scores, table = scores_of(start, q, weights, pools)
    per_page = PAGE // POOL
    keys = pools[(table[:, None] * per_page + torch.arange(per_page, device=DEVICE)).flatten()]
    expected = score_pools(q.double(), weights.double(), keys.double())
    visible = (torch.arange(start, start + rows, device=DEVICE) + 1) // POOL
    seen = (torch.arange(keys.shape[0], device=DEVICE) < visible[:, None]) & (visible > COUNT)[:, None]
    assert torch.equal(scores.isnan(), ~seen)
    if seen.any():
        assert relative_error(scores[seen], expected[seen]) < 1e-5


def test_a_rows_scores_depend_on_that_row_alone():
    q, weights, pools = chunk(70, 32)
    together = scores_of(1000, q, weights, pools)[0]
    for first in (1, 6, 67):
        alone = scores_of(1000 + first, q[first:].contiguous(), weights[first:], pools)[0]
        assert torch.equal(alone.nan_to_num(), together[first:].nan_to_num())
