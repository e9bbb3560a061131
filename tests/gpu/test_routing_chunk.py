"""Expert routing of a chunk on a card against the reference, its blocks against their plain construction."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.moe.chunk import ChunkRouter
from tandem.kernels.moe.reference import route

pytestmark = NEEDS_CARD


def levels(rows, experts):
    """Logits whose scores are equal or far apart, by a quarter's bias, too: rounding decides nothing."""
    return torch.randint(-64, 65, (rows, experts)) / 16


def check(logits, bias, top_k, shared, normalize=True):
    experts = logits.shape[1]
    router = ChunkRouter(DEVICE, CUBINS, top_k, shared, normalize, 2.5)
    found = router.route(logits.cuda(), bias.cuda())
    chosen, weights = route(logits, bias, top_k, normalize=normalize, scaling=2.5)
    if shared:
        chosen = torch.nn.functional.pad(chosen, (0, 1), value=experts)
        weights = torch.nn.functional.pad(weights, (0, 1), value=1.0)
    torch.testing.assert_close(found.row_weight.cpu(), weights, rtol=1e-5, atol=1e-6)
    expected, row_pair = Blocks.routed(chosen, experts + shared)
    assert torch.equal(found.row_pair.cpu(), row_pair)
    blocks = found.blocks
    assert blocks.pairs == expected.pairs
    assert torch.equal(blocks.pair_row.cpu(), expected.pair_row)
    met = expected.pair_row >= 0
    assert torch.equal(blocks.pair_matrix[met.cuda()].cpu(), expected.pair_matrix[met])
    assert torch.equal(blocks.count.cpu(), expected.count)
    used = slice(int(expected.count))
    for name in ("matrix", "start", "end"):
        assert torch.equal(getattr(blocks, name)[used].cpu(), getattr(expected, name)[used])


@pytest.mark.parametrize("rows", [1, 31, 64, 500, 4096])
@pytest.mark.parametrize(("experts", "top_k", "shared"), [(8, 2, 1), (63, 6, 0), (288, 8, 1), (1023, 14, 1)])
def test_equals_the_reference(rows, experts, top_k, shared):
    check(levels(rows, experts), torch.randint(2, (experts,)) / 4, top_k, shared)


@pytest.mark.parametrize("normalize", [False, True])
def test_ties_go_to_the_lower_expert(normalize):
    logits = torch.randint(-2, 3, (300, 200)).float()
    logits[3] = 1.0
    check(logits, torch.zeros(200), 8, 1, normalize)


def test_everybody_may_want_the_same():
    logits = levels(700, 40)
    logits[:, 5] += 20.0
    check(logits, torch.zeros(40), 4, 1)
