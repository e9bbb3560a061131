"""What the CUDA products are given, by the reference's arithmetic: signs, biases, padding, plain matrices."""

from __future__ import annotations

import pytest
import torch

from tandem.core.errors import ModelUnsupportedError
from tandem.kernels.exl3.operands import PLAIN, Exl3Matrix, Exl3Stack, Form
from tandem.kernels.exl3.plain import plain_matrix
from tandem.kernels.exl3.reference import decode_inner, tile_positions
from tandem.kernels.hadamard.reference import hadamard
from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.cuda_weights import DeviceReader
from tandem.quant.exl3.format import read_format
from tandem.quant.exl3.linear import Exl3Linear

CPU = torch.device("cpu")
DTYPES = {torch.int16: "I16", torch.float16: "F16", torch.int32: "I32", torch.float32: "F32"}


class Tensors(dict):
    """A source of the tensors it holds."""

    def names(self):
        return self.keys()

    def header(self, name):
        tensor = self[name]
        return TensorHeader(name, DTYPES[tensor.dtype], tuple(tensor.shape), tensor.nbytes)

    def read(self, name):
        return self[name]


def matrix_tensors(inputs, outputs, bits, codebook, *, signs=False, bias=False):
    k, n = (-(-size // 128) * 128 for size in (inputs, outputs))

    def words(*shape):
        return torch.randint(-32768, 32768, shape, dtype=torch.int16)

    tensors = Tensors({"m.trellis": words(k // 16, n // 16, int(16 * bits))})
    if signs:
        tensors |= {"m.su": words(k // 16), "m.sv": words(n // 16)}
    else:
        tensors |= {"m.suh": torch.randn(k).half(), "m.svh": torch.randn(n).half()}
    if codebook != "3inst":
        tensors[f"m.{codebook}"] = torch.tensor(1, dtype=torch.int32)
    if bias:
        tensors["m.bias"] = torch.randn(n).half()
    return Tensors(tensors)


def inner_of(matrix):
    if matrix.codebook != PLAIN:
        return decode_inner(matrix.trellis, matrix.codebook).float()
    tiles = matrix.trellis[..., tile_positions()].view(torch.float16)
    k_tiles, n_tiles, _ = tiles.shape
    return tiles.view(k_tiles, n_tiles, 16, 16).transpose(1, 2).reshape(k_tiles * 16, n_tiles * 16).float()


def product(x, matrix):
    """As the kernels multiply: whatever lies in the padding, the bias before the last rotation."""
    stack = Exl3Stack.of([[matrix]])
    padded = torch.cat((x, torch.randn(x.shape[0], stack.inputs - x.shape[1])), dim=1)
    y = hadamard(padded * stack.suh[0, 0].float(), 128) @ inner_of(matrix)
    if stack.offsets:
        y = y + stack.offsets[0][0]
    return hadamard(y, 128) * stack.svh[0][0].float()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize(("codebook", "bits"), [("mul1", 3), ("mul1", 2.5), ("mcg", 4), ("3inst", 1)])
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 256), (200, 300)])
def test_matrices_mean_what_the_cpu_multiplies(inputs, outputs, codebook, bits, signs, bias):
    source = matrix_tensors(inputs, outputs, bits, codebook, signs=signs, bias=bias)
    matrix = DeviceReader(source, CPU).matrix("m", inputs, outputs)
    assert matrix.form == Form(codebook, bits)
    headers = {name: source.header(name) for name in source}
    x = torch.randn(3, inputs)
    expected = Exl3Linear(read_format("m", headers, inputs, outputs), source)(x)
    found = product(x, matrix)
    assert (found[:, outputs:] == 0).all()
    torch.testing.assert_close(found[:, :outputs], expected, rtol=1e-3, atol=1e-3 * float(expected.std()))


def test_a_bias_without_a_scale_is_refused():
    source = matrix_tensors(128, 128, 3, "mcg", bias=True)
    source["m.svh"][5] = 0
    with pytest.raises(ModelUnsupportedError, match="m adds a bias"):
        DeviceReader(source, CPU).matrix("m", 128, 128)


@pytest.mark.parametrize("size", [1e-5, 0.02, 3e3])
@pytest.mark.parametrize(("inputs", "outputs"), [(128, 128), (200, 4300)])
def test_plain_matrices_keep_their_digits(inputs, outputs, size):
    weight, x = size * torch.randn(outputs, inputs), torch.randn(3, inputs)
    found, expected = product(x, plain_matrix(weight)), x @ weight.T
    assert (found[:, outputs:] == 0).all()
    assert (found[:, :outputs] - expected).norm() / expected.norm() < 4e-4


def test_a_plain_matrix_of_zeros():
    assert (product(torch.randn(2, 64), plain_matrix(torch.zeros(64, 64))) == 0).all()


def test_which_stacks_are_integer():
    def matrix(codebook, bits, bias=None):
        ones = torch.ones(128).half()
        codes = torch.zeros(8, 8, int(16 * bits), dtype=torch.int16)
        return Exl3Matrix(codes, ones, ones, codebook, bias)

    whole = [matrix("mul1", bits) for bits in (3, 4, 3)]
    biased = matrix("mul1", 3, torch.ones(128).half())
    assert Exl3Stack.of([whole]).integer
    assert Exl3Stack.of([whole]).rates == (3, 4)
    for odd in (matrix("mul1", 5), matrix("mul1", 2.5), matrix("mcg", 3), biased):
        stack = Exl3Stack.of([[*whole, odd], [*whole, odd]])
        assert not stack.integer
        second = stack.group(1)
        assert second.matrices == 4
        assert [second.forms[number] for number in second.form_of.tolist()] == [m.form for m in (*whole, odd)]
    with pytest.raises(ValueError, match="one shape"):
        Exl3Stack.of([[whole[0], plain_matrix(torch.ones(256, 128))]])
