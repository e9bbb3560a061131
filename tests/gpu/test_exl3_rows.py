"""EXL3 row products on a card against the exact decode, and the promise that no row sees its neighbours."""

import pytest
import torch
from tests.gpu.cards import CUBINS

from tandem.kernels.exl3.cuda import Exl3Rows
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Jobs, Scratch
from tandem.kernels.exl3.reference import exl3_linear

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]

SHAPES = [(128, 128), (512, 384), (4096, 1024), (2048, 4096)]


@pytest.fixture(scope="module")
def kernels():
    return Exl3Rows(torch.device("cuda", 0), CUBINS, 132)


def random_matrix(inputs, outputs, bits, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (inputs // 16, outputs // 16, 16 * bits)
    trellis = torch.randint(-32768, 32768, shape, generator=generator, dtype=torch.int16)
    suh = torch.randn(inputs, generator=generator).half()
    svh = torch.randn(outputs, generator=generator).half()
    return Exl3Matrix(trellis.cuda(), suh.cuda(), svh.cuda())


def random_stack(inputs, outputs, bits, seed):
    return Exl3Stack.of([[random_matrix(inputs, outputs, bits, seed)]])


def run(kernels, stack, x, splits=None, jobs=None, group=0):
    jobs = jobs or Jobs.dense(x.shape[0], x.device)
    rows, pairs = x.shape[0], stack.groups * jobs.capacity
    splits = splits or kernels.splits(stack, jobs, rows)
    scratch = Scratch.empty(pairs * stack.inputs, splits * pairs * stack.widest, splits * pairs, x.device)
    # As a float it is NaN.
    scratch.values.fill_(0x7FFFFFFF)
    scratch.rotated.fill_(float("nan"))
    inputs = scratch.inputs(pairs, stack.inputs)
    out = scratch.outputs(splits, pairs, stack.widest, stack.integer)
    y = torch.full((jobs.capacity, stack.outputs[group]), float("nan"), device=x.device)
    kernels.rotate(x, stack, jobs, inputs)
    kernels.product(inputs, stack, jobs, out, rows)
    kernels.finish(out, stack, jobs, y, group)
    return y


def exact(x, stack, group=0, matrix=0):
    trellis = stack.trellises[group * stack.matrices + matrix].cpu()
    suh, svh = stack.suh[group, matrix].cpu(), stack.svh[group][matrix].cpu()
    return exl3_linear(x, trellis, suh, svh, "mul1")


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_equals_the_exact_decode(kernels, inputs, outputs, bits):
    stack = random_stack(inputs, outputs, bits, seed=bits)
    x = torch.randn(5, inputs)
    found = run(kernels, stack, x.cuda()).cpu()
    expected = exact(x, stack)
    error = (found - expected).norm() / expected.norm()
    assert error < 3e-4


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16])
def test_a_rows_bits_depend_on_that_row_alone(kernels, rows):
    stack = random_stack(1024, 512, 3, seed=7)
    x = torch.randn(16, 1024).cuda()
    together = run(kernels, stack, x[:rows].contiguous())
    for row in range(rows):
        assert torch.equal(run(kernels, stack, x[row : row + 1].contiguous())[0], together[row])


@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_splitting_k_changes_no_bit(kernels, splits):
    stack = random_stack(2048, 256, 5, seed=3)
    x = torch.randn(3, 2048).cuda()
    assert torch.equal(run(kernels, stack, x, splits), run(kernels, stack, x, 4))


def test_a_row_of_zeros_gives_zeros(kernels):
    stack = random_stack(256, 256, 4, seed=5)
    assert torch.equal(run(kernels, stack, torch.zeros(2, 256).cuda()).cpu(), torch.zeros(2, 256))


def test_groups_of_other_widths_and_experts_of_two_rates(kernels):
    """Three rows meet five of seven experts; group 1 is wider than group 0, the last expert has more bits."""
    narrow = [random_matrix(256, 128, 5 if m == 6 else 3, m) for m in range(7)]
    wide = [random_matrix(256, 384, 5 if m == 6 else 3, 10 + m) for m in range(7)]
    stack, x = Exl3Stack.of([narrow, wide]), torch.randn(3, 256)

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32).cuda()

    pairs = [(0, 1), (2, 1), (1, 3), (0, 4), (0, 6), (1, 6), (2, 6)]
    padding = [0] * 5
    jobs = Jobs(
        ints(*(row for row, _ in pairs), *padding),
        ints(*(matrix for _, matrix in pairs), *padding),
        ints(len(pairs)),
        ints(0, 2, 3, 4, 7, *padding),
        ints(1, 3, 4, 6, *padding),
        ints(4),
    )
    for group in (0, 1):
        y = run(kernels, stack, x.cuda(), jobs=jobs, group=group).cpu()
        for pair, (row, matrix) in enumerate(pairs):
            expected = exact(x[row : row + 1], stack, group, matrix)[0]
            assert (y[pair] - expected).norm() / expected.norm() < 5e-4


@pytest.mark.parametrize("rows", [8, 13])
def test_jobs_of_few_and_of_many_rows_in_one_launch(kernels, rows):
    """Jobs of 1, 4, 5 and all rows; two rates. Each pair's bits are those of its row alone."""
    stack = Exl3Stack.of([[random_matrix(512, 256, 5 if m == 3 else 3, 20 + m) for m in range(4)]])
    x = torch.randn(rows, 512).cuda()

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32).cuda()

    sizes = (1, 4, 5, rows)
    pairs = [(rows - 1 - row, matrix) for matrix, size in enumerate(sizes) for row in range(size)]
    starts = [sum(sizes[:job]) for job in range(5)]
    jobs = Jobs(
        ints(*(row for row, _ in pairs)),
        ints(*(matrix for _, matrix in pairs)),
        ints(len(pairs)),
        ints(*starts),
        ints(0, 1, 2, 3),
        ints(4),
    )
    together = run(kernels, stack, x, jobs=jobs)
    for pair, (row, matrix) in enumerate(pairs):
        own = Jobs(ints(0), ints(matrix), ints(1), ints(0, 1), ints(matrix), ints(1))
        alone = run(kernels, stack, x[row : row + 1].contiguous(), jobs=own)[0]
        assert torch.equal(alone, together[pair])
        expected = exact(x[row : row + 1].cpu(), stack, matrix=matrix)[0]
        assert (together[pair].cpu() - expected).norm() / expected.norm() < 5e-4
