"""A gated product hands its jobs over to the down projection one by one: the same bits as in two steps."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned

from tandem.kernels.exl3.cuda import Exl3Rows
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Gated, Inputs, Jobs, Scratch

pytestmark = NEEDS_CARD
INPUTS, WIDTH, MATRICES, LIMIT = 512, 384, 5, 1.5


def stack_of(groups: int, inputs: int, outputs: int) -> Exl3Stack:
    """Of three bits, the last matrix of five."""

    def matrix(bits: int) -> Exl3Matrix:
        shape = (inputs // 16, outputs // 16, 16 * bits)
        codes = torch.randint(-32768, 32768, shape, dtype=torch.int16, device=DEVICE)
        scales = (torch.randn(size, device=DEVICE).half() for size in (inputs, outputs))
        return Exl3Matrix(codes, *scales)

    bits = [3] * (MATRICES - 1) + [5]
    return Exl3Stack.of([[matrix(each) for each in bits] for _ in range(groups)])


def jobs_of(rows: int) -> tuple[Jobs, int]:
    """Every row meets the last matrix, and some of the others; nobody meets matrix 1."""
    pairs = [
        (row, matrix)
        for matrix in (0, 2, 3, 4)
        for row in range(rows)
        if matrix == 4 or (row + matrix) % 3 == 0
    ]
    used = sorted({matrix for _, matrix in pairs})
    starts = [sum(matrix < which for _, matrix in pairs) for which in used] + [len(pairs)]
    jobs = Jobs.empty(len(pairs) + 2, MATRICES, DEVICE)
    for part, values in (
        (jobs.pair_row, [row for row, _ in pairs]),
        (jobs.pair_matrix, [matrix for _, matrix in pairs]),
        (jobs.pair_count, [len(pairs)]),
        (jobs.job_start, starts),
        (jobs.job_matrix, used),
        (jobs.job_count, [len(used)]),
    ):
        part[: len(values)] = torch.tensor(values, dtype=torch.int32)
    return jobs, len(pairs)


@pytest.mark.parametrize("rows", [1, 3, 8, 16])
def test_the_same_bits_as_one_after_the_other(rows: int) -> None:
    kernels, (jobs, pairs) = Exl3Rows(DEVICE, CUBINS, 132), jobs_of(rows)
    gate_up, down, capacity = stack_of(2, INPUTS, WIDTH), stack_of(1, WIDTH, INPUTS), jobs.capacity
    splits = kernels.splits(gate_up, jobs, rows), kernels.splits(down, jobs, rows)
    scratch = Scratch.empty(2 * capacity * INPUTS, 2 * max(splits) * capacity * INPUTS, 64 * capacity, DEVICE)
    inputs = scratch.inputs(2 * capacity, INPUTS)
    kernels.rotate(torch.randn(rows, INPUTS, device=DEVICE), gate_up, jobs, inputs)
    rotated = scratch.inputs(capacity, WIDTH, second=True)

    def run(ready: torch.Tensor | None) -> torch.Tensor:
        scratch.values.fill_(2**31 - 1)
        rotated.rotated.fill_(float("nan"))
        sums = scratch.outputs(splits[0], 2 * capacity, WIDTH)
        if ready is None:
            kernels.product(inputs, gate_up, jobs, sums, rows)
            kernels.finish_gate_up(sums, gate_up, down, jobs, rotated, LIMIT)
        else:
            gated = Gated(down, Inputs(rotated.rotated, rotated.peaks), scratch.arrivals, LIMIT, ready)
            kernels.product(inputs, gate_up, jobs, sums, rows, gated=gated)
        sums = scratch.outputs(splits[1], capacity, INPUTS)
        kernels.product(rotated, down, jobs, sums, rows, awaits=ready)
        y = poisoned(capacity, INPUTS)
        kernels.finish(sums, down, jobs, y)
        return y[:pairs]

    expected = run(None)
    assert expected.isfinite().all()
    for _ in range(5):
        assert torch.equal(run(scratch.ready), expected)
        assert not scratch.ready.any()
        assert not scratch.arrivals.any()
