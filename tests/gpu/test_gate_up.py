"""From gate and up to the down projection's rotated input, of a step's pairs and of a chunk's."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, in_rows, poisoned, relative_error
from tests.gpu.left_sums import meaning, random_sums

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.exl3.chunk import Exl3Chunk
from tandem.kernels.exl3.cuda import Exl3Rows
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Inputs, Jobs
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.moe.reference import clamped_swiglu

pytestmark = NEEDS_CARD
WIDTH, INPUTS, MATRICES = 384, 256, 5


def stack_of(groups, inputs, outputs):
    """Only its scales are looked at."""

    def matrix():
        codes = torch.zeros(inputs // 16, outputs // 16, 16, dtype=torch.int16, device=DEVICE)
        scales = (torch.randn(size, device=DEVICE).half() for size in (inputs, outputs))
        return Exl3Matrix(codes, *scales)

    return Exl3Stack.of([[matrix() for _ in range(MATRICES)] for _ in range(groups)])


@pytest.mark.parametrize("limit", [None, 1.5])
@pytest.mark.parametrize("pairs", [1, 7, 48])
def test_pairs_of_a_step(pairs, limit):
    gate_up, down = stack_of(2, INPUTS, WIDTH), stack_of(1, WIDTH, INPUTS)
    jobs = Jobs.empty(pairs + 3, MATRICES, DEVICE)
    which = torch.randint(MATRICES, (pairs,)).sort().values
    jobs.pair_matrix[:pairs] = which.cuda()
    jobs.pair_count.fill_(pairs)
    capacity = jobs.capacity
    sums = random_sums(2, 2 * capacity, WIDTH)
    out = Inputs(poisoned(capacity, WIDTH), poisoned(capacity, WIDTH // 128))
    Exl3Rows(DEVICE, CUBINS, 132).finish_gate_up(sums, gate_up, down, jobs, out, limit)
    for pair, matrix in enumerate(which.tolist()):
        gate = meaning(sums, gate_up.svh[0][matrix], [pair], WIDTH)
        up = meaning(sums, gate_up.svh[1][matrix], [capacity + pair], WIDTH)
        expected = hadamard(clamped_swiglu(gate, up, limit) * down.suh[0, matrix].float(), 128)
        assert relative_error(out.rotated[pair], expected[0]) < 1e-5
    assert torch.equal(out.peaks[:pairs], out.rotated[:pairs].view(pairs, -1, 128).abs().amax(-1))
    assert out.rotated[pairs:].isnan().all()


@pytest.mark.parametrize("limit", [None, 1.5])
@pytest.mark.parametrize("rows", [1, 63, 500])
def test_pairs_of_a_chunk(rows, limit):
    down = stack_of(1, WIDTH, INPUTS)
    experts = torch.stack([torch.randperm(MATRICES)[:2] for _ in range(rows)]).sort(1).values
    blocks, _ = Blocks.routed(experts.cuda(), MATRICES)
    pairs = blocks.pairs
    gate, up = (torch.randn(pairs, WIDTH, device=DEVICE).half() for _ in range(2))
    rotated = poisoned(1, pairs, WIDTH, dtype=torch.float16)
    Exl3Chunk(DEVICE, CUBINS).gate_up(gate, up, down, blocks, rotated, limit)
    assert blocks.pair_row is not None
    assert blocks.pair_matrix is not None
    signs = down.suh[0][blocks.pair_matrix.long()].float()
    expected = hadamard(clamped_swiglu(gate.float(), up.float(), limit) * signs, 128)
    found, holes = in_rows(rotated)[0], blocks.pair_row < 0
    assert relative_error(found[~holes], expected[~holes]) < 1e-3
    assert found[holes].isnan().all()
