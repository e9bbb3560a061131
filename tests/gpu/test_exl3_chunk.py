"""EXL3 products of a chunk's rows on a card against the exact decode: the fused product and the library's."""

import pytest
import torch
from tests.gpu.test_exl3_rows import exact, random_matrix

from tandem.kernels.exl3.chunk import LIBRARY_ROWS, Blocks, Exl3Chunk
from tandem.kernels.exl3.operands import Exl3Stack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Exl3Chunk(torch.device("cuda", 0), tmp_path_factory.mktemp("cubin"))


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rows", [1, 63, 300, LIBRARY_ROWS + 76])
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
    pairs = experts.numel()
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
