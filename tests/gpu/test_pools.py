"""The indexer on a card: scores of pools and the choice among them, up to a million tokens."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from tandem.kernels.indexer.cuda import TopPools
from tandem.kernels.indexer.reference import score_pools, select_pools
from tandem.kernels.indexer.triton import score
from tandem.kernels.mla.operands import Where

pytestmark = NEEDS_CARD
POOL, PAGE, D = 4, 64, 128
POISON = 2**31 - 1


def where_of(positions, runs, pages_of_run, count):
    """Pages of the runs interleave and do not ascend."""
    runs_count = max(runs) + 1
    pages = torch.arange(pages_of_run).flip(0) * runs_count
    tables = (pages + torch.arange(runs_count)[:, None]).int().contiguous()
    chosen = torch.full((len(positions), count), POISON, dtype=torch.int32, device=DEVICE)
    return Where(
        torch.tensor(positions, dtype=torch.int32).cuda(),
        torch.tensor(runs, dtype=torch.int32).cuda(),
        tables.cuda(),
        chosen,
        PAGE,
        POOL,
    )


def pools_of(where, run, pooled):
    """The paged pool keys of one run in order, [N, D]."""
    pages = where.page_tables[run].long()
    per_page = PAGE // POOL
    at = pages[:, None] * per_page + torch.arange(per_page, device=DEVICE)
    return pooled[at.flatten()]


@pytest.mark.parametrize("heads", [4, 32])
def test_scores_equal_the_reference(heads):
    positions = [0, 3, 250, 255, 256, 257, 1022, 1023, 1999]
    runs = [i % 3 for i in range(len(positions))]
    where, rows = where_of(positions, runs, 32, 16), len(positions)
    pooled = torch.randn(3 * 32 * PAGE // POOL, D, device=DEVICE).half()
    q, weights = torch.randn(rows, heads, D, device=DEVICE), torch.randn(rows, heads + 5, device=DEVICE)
    scores = poisoned(rows, 32 * PAGE // POOL)
    score(q, weights[:, :heads], pooled, where, scores)
    for row, position in enumerate(positions):
        visible = (position + 1) // POOL
        if visible <= 16:
            assert scores[row].isnan().all()
            continue
        keys = pools_of(where, runs[row], pooled).double()
        one = slice(row, row + 1)
        expected = score_pools(q[one].double(), weights[one, :heads].double(), keys)[0, :visible]
        assert relative_error(scores[row, :visible], expected) < 1e-5
        assert scores[row, visible:].isnan().all()


@pytest.mark.parametrize("rows", [2, 5, 16])
def test_a_rows_scores_depend_on_that_row_alone(rows):
    positions, runs = [1000 + 61 * i for i in range(rows)], [i % 3 for i in range(rows)]
    pooled = torch.randn(3 * 32 * PAGE // POOL, D, device=DEVICE).half()
    q, weights = torch.randn(rows, 32, D, device=DEVICE), torch.randn(rows, 32, device=DEVICE)

    def scores_of(which):
        where = where_of([positions[i] for i in which], [*(runs[i] for i in which), 2], 32, 16)
        scores = torch.zeros(len(which), 512, device=DEVICE)
        score(q[which].contiguous(), weights[which].contiguous(), pooled, where, scores)
        return scores

    together = scores_of(list(range(rows)))
    for row in range(rows):
        assert torch.equal(scores_of([row])[0], together[row])


def select(scores, positions, count):
    chosen = torch.full((len(positions), count), POISON, dtype=torch.int32, device=DEVICE)
    where = torch.tensor(positions, dtype=torch.int32).cuda()
    TopPools(DEVICE, CUBINS).select(scores.cuda(), where, chosen, POOL)
    return chosen.cpu()


def check_selection(scores, positions, count):
    chosen = select(scores, positions, count)
    visible = (torch.tensor(positions) + 1) // POOL
    mask = select_pools(scores, visible, count)
    for row in range(len(positions)):
        if visible[row] <= count:
            assert (chosen[row] == POISON).all()
        else:
            assert torch.equal(chosen[row].long(), mask[row].nonzero()[:, 0])


@pytest.mark.parametrize("count", [16, 512])
@pytest.mark.parametrize("levels", [0, 1, 3, 40])
def test_the_best_pools_ties_to_the_earlier(count, levels):
    """levels: how many different scores there are; 0: all differ. Zeros of both signs are one score."""
    positions = [0, 4 * count - 1, 4 * count + 2, 4 * count + 3, 4095, 9001, 11999]
    scores = torch.randn(len(positions), 3000)
    if levels:
        scores = torch.randint(-(levels // 2), levels // 2 + 1, scores.shape).float()
        scores[:, ::3] *= -1.0
    check_selection(scores, positions, count)


def test_a_million_tokens():
    scores = torch.randn(3, 262_144)
    scores[1] = (scores[1] * 4).round() / 4
    check_selection(scores, [1_048_575, 1_048_574, 700_001], 512)
