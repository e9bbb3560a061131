"""Small fp16 matrices times few rows on a card, and rows that do not see each other."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, compile_ahead, poisoned, relative_error

from tandem.kernels.exl3.cuda import ROW_BUCKETS, row_bucket
from tandem.kernels.linear.cuda import SOURCE, DenseRows
from tandem.kernels.linear.reference import linear

pytestmark = NEEDS_CARD
KERNELS = DenseRows(DEVICE, CUBINS)


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_together():
    compile_ahead(*(SOURCE.with_defines(ROWS=rows) for rows in ROW_BUCKETS))


def multiply(weight, x):
    y = poisoned(x.shape[0], weight.shape[0])
    KERNELS.multiply(weight, x.contiguous(), y, row_bucket(x.shape[0]))
    return y


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 8), (63, 504), (290, 4096), (288, 6144)])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 13, 16])
def test_equals_the_reference(rows, outputs, inputs):
    weight, x = torch.randn(outputs, inputs).half(), torch.randn(rows, inputs)
    expected = linear(x.double(), weight.double())
    assert relative_error(multiply(weight.cuda(), x.cuda()), expected) < 1e-6


@pytest.mark.parametrize("rows", range(2, 17))
def test_a_rows_bits_depend_on_that_row_alone(rows):
    weight, x = torch.randn(65, 1032).half().cuda(), torch.randn(16, 1032).cuda()
    together = multiply(weight, x[16 - rows :])
    for row in range(rows):
        at = 16 - rows + row
        assert torch.equal(multiply(weight, x[at : at + 1])[0], together[row])
