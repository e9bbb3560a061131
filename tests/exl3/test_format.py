"""Reading EXL3 headers: shapes, rates, markers, and refusals by name."""

from __future__ import annotations

import pytest

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError, UserError
from tandem.loader.base import TensorHeader
from tandem.quant.exl3.format import is_exl3, read_format


def entries(**tensors: tuple[str, tuple[int, ...]]) -> dict[str, TensorHeader]:
    return {
        f"m.{part}": TensorHeader(f"m.{part}", dtype, shape, 0) for part, (dtype, shape) in tensors.items()
    }


def matrix(width: int = 48, **extra: tuple[str, tuple[int, ...]]) -> dict[str, TensorHeader]:
    parts = {"trellis": ("I16", (8, 16, width)), "suh": ("F16", (128,)), "svh": ("F16", (256,))}
    return entries(**(parts | extra))


def test_a_plain_matrix() -> None:
    found = read_format("m", matrix(mul1=("I32", ())), 128, 256)
    assert (found.bits, found.codebook, found.has_bias) == (3.0, "mul1", False)
    assert found.tensor_names == ("m.trellis", "m.suh", "m.svh", "m.mul1")
    assert found.resident_bytes == 128 * 256 * 3 // 8 + 2 * (128 + 256)
    assert is_exl3("m", matrix())
    assert not is_exl3("n", matrix())


@pytest.mark.parametrize(("width", "bits"), [(16, 1), (24, 1.5), (40, 2.5), (56, 3.5), (96, 6), (128, 8)])
def test_rate_comes_from_the_width(width: int, bits: float) -> None:
    assert read_format("m", matrix(width, mul1=("I32", ())), 128, 256).bits == bits


def test_no_marker_means_3inst_and_padding_is_to_128() -> None:
    found = read_format("m", matrix(bias=("F16", (256,))), 100, 130)
    assert (found.codebook, found.padded_in, found.padded_out) == ("3inst", 128, 256)
    assert found.tensor_names[-1] == "m.bias"


def test_old_files_pack_signs() -> None:
    old = entries(trellis=("I16", (8, 16, 64)), su=("I16", (8,)), sv=("I16", (16,)))
    assert read_format("m", old, 128, 256).tensor_names == ("m.trellis", "m.su", "m.sv")


@pytest.mark.parametrize(
    ("tensors", "error", "names"),
    [
        (entries(suh=("F16", (128,)), svh=("F16", (256,))), ModelDamagedError, "m.trellis"),
        (matrix(width=100), ModelUnsupportedError, "m.trellis"),
        (matrix(width=144), ModelUnsupportedError, "m.trellis"),
        (matrix(width=72, mul1=("I32", ())), ModelUnsupportedError, "m.trellis"),
        (matrix(width=24), ModelUnsupportedError, "mul1"),
        (matrix(mcg=("I32", ()), mul1=("I32", ())), ModelDamagedError, "two codebooks"),
        (matrix(trellis=("I16", (8, 8, 48))), ModelDamagedError, "m.trellis"),
        (matrix(trellis=("I16", (8, 768))), ModelDamagedError, "m.trellis"),
        (matrix(trellis=("F16", (8, 16, 48))), ModelDamagedError, "m.trellis"),
        (matrix(suh=("F16", (256,))), ModelDamagedError, "m.suh"),
        (matrix(svh=("F32", (256,))), ModelDamagedError, "m.svh"),
        (matrix(bias=("F16", (128,))), ModelDamagedError, "m.bias"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tensors: dict[str, TensorHeader], error: type[UserError], names: str
) -> None:
    with pytest.raises(error, match=names):
        read_format("m", tensors, 128, 256)
