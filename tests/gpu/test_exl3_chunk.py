"""EXL3 products of a chunk's rows on a card against the exact decode: the fused product and the library's."""

import pytest
import torch
from tests.gpu.cards import CUBINS
from tests.gpu.test_exl3_rows import exact, random_matrix

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.exl3.chunk import LIBRARY_ROWS, Exl3Chunk
from tandem.kernels.exl3.operands import Exl3Stack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]


@pytest.fixture(scope="module")
def kernels():
    return Exl3Chunk(torch.device("cuda", 0), CUBINS)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rows", [1, 63, 90, 107, 300, LIBRARY_ROWS + 76])
def test_equals_the_exact_decode(kernels, bits, rows):
    stack = Exl3Stack.of([[random_matrix(512, 384, bits, bits)], [random_matrix(512, 128, bits, 9)]])
    x = torch.randn(rows, 512).half()
    blocks = Blocks.dense(rows, torch.device("cuda", 0))
    rotated = torch.full((2, rows, 512), float("nan"), dtype=torch.float16, device="cuda")
    y = [torch.full((rows, n), float("nan"), device="cuda") for n in stack.outputs]
    kernels.rotate(x.cuda(), stack.suh, blocks, rotated)
    kernels.product(rotated, stack, blocks, (y[0], y[1]))
    for group in (0, 1):
        expected = exact(x.float(), stack, group)
        assert (y[group].cpu() - expected).norm() / expected.norm() < 1e-3


def test_routed_rows_meet_their_experts(kernels):
    """Seven experts, one without rows, one with more than a block of them, the last with more bits."""
    stack = Exl3Stack.of([[random_matrix(256, 128, 5 if m == 6 else 3, m) for m in range(7)]])
    generator = torch.Generator().manual_seed(1)
    rows = 200
    experts = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(rows)]).sort(1).values
    experts = torch.cat((experts, torch.full((rows, 1), 6)), dim=1)
    x = torch.randn(rows, 256).half()
    blocks, row_pair = Blocks.routed(experts.cuda(), 7)
    pairs = blocks.pairs
    rotated = torch.full((1, pairs, 256), float("nan"), dtype=torch.float16, device="cuda")
    y = torch.full((pairs, 128), float("nan"), device="cuda")
    kernels.rotate(x.cuda(), stack.suh, blocks, rotated)
    kernels.product(rotated, stack, blocks, (y,))
    by_row = y.cpu()[row_pair.cpu().long()]
    for expert in (0, 1, 2, 3, 6):
        expected = exact(x.float(), stack, 0, expert)
        row, choice = (experts == expert).nonzero(as_tuple=True)
        found = by_row[row, choice]
        assert (found - expected[row]).norm() / expected[row].norm() < 1e-3


@pytest.mark.parametrize("bits", range(1, 9))
def test_routed_rows_of_any_number_and_two_groups(kernels, bits):
    """Matrices with 500, 63, 1, 0, 90, 107 and all rows (more bits); groups of two widths."""
    groups = [
        [random_matrix(512, outputs, min(bits + (m == 6), 8), 10 * m + outputs) for m in range(7)]
        for outputs in (384, 128)
    ]
    stack = Exl3Stack.of(groups)
    counts = torch.tensor([500, 63, 1, 0, 90, 107])
    first = torch.repeat_interleave(torch.arange(6), counts)
    rows = first.numel()
    experts = torch.stack((first[torch.randperm(rows)], torch.full((rows,), 6)), dim=1)
    x = torch.randn(rows, 512).half()
    blocks, row_pair = Blocks.routed(experts.cuda(), 7)
    rotated = torch.full((2, blocks.pairs, 512), float("nan"), dtype=torch.float16, device="cuda")
    y = [torch.full((blocks.pairs, n), float("nan"), dtype=torch.float16, device="cuda") for n in (384, 128)]
    kernels.rotate(x.cuda(), stack.suh, blocks, rotated)
    kernels.product(rotated, stack, blocks, (y[0], y[1]))
    for group in (0, 1):
        by_row = y[group].cpu().float()[row_pair.cpu().long()]
        for expert in (0, 1, 2, 4, 5, 6):
            expected = exact(x.float(), stack, group, expert)
            row, choice = (experts == expert).nonzero(as_tuple=True)
            assert (by_row[row, choice] - expected[row]).norm() / expected[row].norm() < 1e-3


def test_a_routed_rows_bits_do_not_depend_on_the_other_rows(kernels):
    """The same rows in blocks of 8, 64, 96, 112 and 128."""
    stack = Exl3Stack.of([[random_matrix(256, 256, 3, m) for m in range(2)]])
    x = torch.randn(128, 256).half()
    found = []
    for rows in (5, 60, 90, 110, 128):
        blocks, row_pair = Blocks.routed(torch.ones(rows, 1, dtype=torch.int64).cuda(), 2)
        rotated = torch.full((1, blocks.pairs, 256), float("nan"), dtype=torch.float16, device="cuda")
        y = torch.full((blocks.pairs, 256), float("nan"), device="cuda")
        kernels.rotate(x[:rows].cuda(), stack.suh, blocks, rotated)
        kernels.product(rotated, stack, blocks, (y,))
        found.append(y[row_pair[:5, 0].long()])
    assert all(torch.equal(other, found[-1]) for other in found)


def test_the_gated_inputs_of_routed_rows(kernels):
    """silu(min(gate, limit)) times clamped up, rotated by each row's own matrix and multiplied."""
    stack = Exl3Stack.of([[random_matrix(384, 128, 4, m) for m in range(3)]])
    experts = torch.randint(3, (150, 1))
    blocks, row_pair = Blocks.routed(experts.cuda(), 3)
    gate, up = (3 * torch.randn(blocks.pairs, 384).half() for _ in range(2))
    rotated = torch.full((1, blocks.pairs, 384), float("nan"), dtype=torch.float16, device="cuda")
    y = torch.full((blocks.pairs, 128), float("nan"), device="cuda")
    kernels.gate_up(gate.cuda(), up.cuda(), stack, blocks, rotated, 4.0)
    kernels.product(rotated, stack, blocks, (y,))
    at = row_pair.cpu()[:, 0].long()
    x = torch.nn.functional.silu(gate.float().clamp(max=4.0)) * up.float().clamp(-4.0, 4.0)
    for expert in range(3):
        row = (experts[:, 0] == expert).nonzero()[:, 0]
        expected = exact(x[at[row]], stack, 0, expert)
        assert (y.cpu()[at[row]] - expected).norm() / expected.norm() < 1e-3
