"""EXL3 row products on a card against the exact decode, and the promise that no row sees its neighbours."""

import pytest
import torch

from tandem.kernels.exl3.cuda import Activations, Exl3Stack, RowsKernels, dense_jobs, splits_for
from tandem.kernels.exl3.reference import exl3_linear

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]

SHAPES = [(128, 128), (512, 384), (4096, 1024), (2048, 4096)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return RowsKernels(torch.device("cuda", 0), tmp_path_factory.mktemp("cubin"))


def random_stack(matrices, inputs, outputs, bits, seed):
    generator = torch.Generator().manual_seed(seed)
    trellis = torch.randint(
        -32768,
        32768,
        (matrices, inputs // 16, outputs // 16, 16 * bits),
        generator=generator,
        dtype=torch.int16,
    )
    suh = torch.randn(matrices, inputs, generator=generator).half()
    svh = torch.randn(matrices, outputs, generator=generator).half()
    return Exl3Stack.of(trellis.cuda(), suh.cuda(), svh.cuda())


def run(kernels, stack, x, splits=None):
    rows = x.shape[0]
    jobs = dense_jobs(rows, x.device)
    splits = splits or splits_for(stack.inputs, stack.outputs, 1, rows, 132)
    activations = Activations.empty(rows, stack.inputs, x.device)
    partial = torch.full((splits, rows, 2, stack.outputs), 2**30, dtype=torch.int32, device=x.device)
    y = torch.full((rows, stack.outputs), float("nan"), device=x.device)
    kernels.rotate(x, stack, jobs, activations)
    kernels.product(activations, stack, jobs, partial, rows)
    kernels.finish(partial, activations, stack, jobs, y)
    return y


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_equals_the_exact_decode(kernels, inputs, outputs, bits):
    stack = random_stack(1, inputs, outputs, bits, seed=bits)
    x = torch.randn(5, inputs)
    found = run(kernels, stack, x.cuda()).cpu()
    expected = exl3_linear(x, stack.trellis[0].cpu(), stack.suh[0].cpu(), stack.svh[0].cpu(), "mul1")
    error = (found - expected).norm() / expected.norm()
    assert error < 3e-4


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16])
def test_a_rows_bits_depend_on_that_row_alone(kernels, rows):
    stack = random_stack(1, 1024, 512, 3, seed=7)
    x = torch.randn(16, 1024).cuda()
    together = run(kernels, stack, x[:rows].contiguous())
    for row in range(rows):
        assert torch.equal(run(kernels, stack, x[row : row + 1].contiguous())[0], together[row])


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_splitting_k_changes_no_bit(kernels, splits):
    stack = random_stack(1, 2048, 256, 5, seed=3)
    x = torch.randn(3, 2048).cuda()
    assert torch.equal(run(kernels, stack, x, splits), run(kernels, stack, x, 4))


def test_a_row_of_zeros_gives_zeros(kernels):
    stack = random_stack(1, 256, 256, 4, seed=5)
    assert torch.equal(run(kernels, stack, torch.zeros(2, 256).cuda()).cpu(), torch.zeros(2, 256))
