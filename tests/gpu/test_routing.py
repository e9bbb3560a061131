"""Expert routing on a card against the reference, ties included, and the jobs it hands to the products."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, compile_ahead

from tandem.kernels.moe.cuda import SOURCE, Router, Routing
from tandem.kernels.moe.reference import route

pytestmark = NEEDS_CARD
POISON = 2**31 - 1


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_together():
    compile_ahead(*(SOURCE.with_defines(LANE_EXPERTS=lanes) for lanes in (1, 2, 7, 9, 32)))


def routed(logits, bias, top_k, shared, normalize=True, job_rows=16):
    rows, experts = logits.shape
    out = Routing.empty(rows, experts + shared, top_k + shared, DEVICE, job_rows)
    jobs = out.jobs
    for part in (
        jobs.pair_row,
        jobs.pair_matrix,
        jobs.pair_count,
        jobs.job_start,
        jobs.job_matrix,
        jobs.job_count,
    ):
        part.fill_(POISON)
    out.row_pair.fill_(POISON)
    out.row_weight.fill_(float("nan"))
    Router(DEVICE, CUBINS, top_k, shared, normalize, 2.5).route(logits.cuda(), bias.cuda(), out)
    return out


def check(out, logits, bias, top_k, shared, normalize=True):
    rows, experts = logits.shape
    expected, weights = route(logits, bias, top_k, normalize=normalize, scaling=2.5)
    if shared:
        expected = torch.nn.functional.pad(expected, (0, 1), value=experts)
        weights = torch.nn.functional.pad(weights, (0, 1), value=1.0)
    jobs, row_pair = out.jobs, out.row_pair.cpu().long()
    count = int(jobs.pair_count)
    assert count == expected.numel()
    pair_row, pair_matrix = jobs.pair_row.cpu()[:count].long(), jobs.pair_matrix.cpu()[:count].long()
    assert torch.equal(pair_matrix[row_pair], expected)
    assert torch.equal(pair_row[row_pair], torch.arange(rows)[:, None].expand_as(row_pair))
    order = pair_matrix * 16 + pair_row
    assert torch.equal(order, order.sort().values)
    matrices, sizes = pair_matrix.unique_consecutive(return_counts=True)
    assert int(jobs.job_count) == len(matrices)
    assert torch.equal(jobs.job_matrix.cpu()[: len(matrices)].long(), matrices)
    starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    assert torch.equal(jobs.job_start.cpu()[: len(starts)].long(), starts)
    torch.testing.assert_close(out.row_weight.cpu(), weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", range(1, 17))
@pytest.mark.parametrize(("experts", "top_k", "shared"), [(8, 2, 1), (63, 6, 0), (288, 8, 1), (1023, 14, 1)])
def test_equals_the_reference(rows, experts, top_k, shared):
    logits, bias = torch.randn(rows, experts), 0.1 * torch.randn(experts)
    check(routed(logits, bias, top_k, shared), logits, bias, top_k, shared)


@pytest.mark.parametrize("normalize", [False, True])
def test_ties_go_to_the_lower_expert(normalize):
    logits = torch.randint(-2, 3, (16, 200)).float()
    logits[3] = 1.0
    bias = torch.zeros(200)
    check(routed(logits, bias, 8, 1, normalize), logits, bias, 8, 1, normalize)


def test_a_rows_choice_depends_on_that_row_alone():
    logits, bias = torch.randn(16, 288), 0.1 * torch.randn(288)
    together = routed(logits, bias, 8, 1)
    for row in range(16):
        alone = routed(logits[row : row + 1], bias, 8, 1)
        assert torch.equal(alone.row_weight[0], together.row_weight[row])
        chosen = together.jobs.pair_matrix[together.row_pair[row].long()]
        assert torch.equal(alone.jobs.pair_matrix[alone.row_pair[0].long()], chosen)


@pytest.mark.parametrize("job_rows", [1, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_jobs_of_few_pairs(rows, job_rows):
    """The same pairs as without a limit; a matrix's are cut into jobs from its first pair on."""
    logits, bias = torch.randn(rows, 12), torch.zeros(12)
    whole, cut = (routed(logits, bias, 3, 1, job_rows=most) for most in (16, job_rows))
    pairs = int(whole.jobs.pair_count)
    assert int(cut.jobs.pair_count) == pairs
    assert torch.equal(cut.jobs.pair_matrix[:pairs], whole.jobs.pair_matrix[:pairs])
    assert torch.equal(cut.jobs.pair_row[:pairs], whole.jobs.pair_row[:pairs])
    jobs, starts = int(whole.jobs.job_count), whole.jobs.job_start.tolist()
    expected = [
        (start, matrix)
        for begin, end, matrix in zip(
            starts[:jobs], starts[1 : jobs + 1], whole.jobs.job_matrix.tolist(), strict=False
        )
        for start in range(begin, end, job_rows)
    ]
    count = int(cut.jobs.job_count)
    assert count == len(expected) <= cut.jobs.most_jobs
    assert cut.jobs.job_start[: count + 1].tolist() == [start for start, _ in expected] + [pairs]
    assert cut.jobs.job_matrix[:count].tolist() == [matrix for _, matrix in expected]
