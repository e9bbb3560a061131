"""The EXL3 linear layer: packed codes against the dense matrix, padding, bias, old files, the same bits a
row.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.core.errors import ModelDamagedError
from tandem.loader.safetensors import SafetensorsSource
from tandem.quant.exl3.format import read_format
from tandem.quant.exl3.linear import Exl3Linear

VECTORS = load_file(Path(__file__).parent / "data" / "exl3_vectors.safetensors")
MARKER = torch.tensor(0, dtype=torch.int32)


def matrix(name: str) -> dict[str, torch.Tensor]:
    """A matrix of 128 × 256 from the vectors, under the name ``m``."""
    tensors = {f"m.{part}": VECTORS[f"{name}.{part}"] for part in ("trellis", "suh", "svh")}
    codebook = name.split(".")[0]
    return tensors if codebook == "3inst" else {**tensors, f"m.{codebook}": MARKER}


def load(folder: Path, tensors: dict[str, torch.Tensor], k: int = 128, n: int = 256) -> Exl3Linear:
    save_file(tensors, folder / "model.safetensors")
    source = SafetensorsSource.open(folder)
    headers = {name: source.header(name) for name in source.names()}
    linear = Exl3Linear(read_format("m", headers, k, n), source)
    assert linear.weight_bytes == linear.format.resident_bytes
    return linear


def rows(count: int, features: int) -> torch.Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "name", ["3inst.2", "mcg.4", "mul1.3", "mul1.1", "mul1.8", "mul1.1.5", "mul1.2.5", "mul1.3.5"]
)
def test_packed_product_equals_the_dense_one(name: str, tmp_path: Path) -> None:
    linear = load(tmp_path, matrix(name))
    x = rows(33, 128)
    expected = x.double() @ linear.dense().double().T
    assert (linear(x) - expected).norm() / expected.norm() < 1e-6


def test_a_row_has_the_same_bits_alone_and_among_others(tmp_path: Path) -> None:
    linear = load(tmp_path, matrix("mul1.3"))
    x = rows(33, 128)
    y = linear(x)
    for count in (1, 2, 3, 16):
        for first in range(0, 33 - count, 5):
            assert torch.equal(linear(x[first : first + count]), y[first : first + count])


def test_padded_inputs_are_inert_and_padded_outputs_are_cut(tmp_path: Path) -> None:
    whole = load(tmp_path, matrix("mcg.4"))
    cut = load(tmp_path, matrix("mcg.4"), k=100, n=200)
    x = rows(4, 100)
    padded = torch.nn.functional.pad(x, (0, 28))
    assert cut(x).shape == (4, 200)
    assert torch.equal(cut(x), whole(padded)[:, :200])
    assert torch.equal(cut.dense(), whole.dense()[:200, :100])


def test_bias(tmp_path: Path) -> None:
    bias = rows(1, 256)[0].half()
    plain = load(tmp_path, matrix("mul1.4"))
    biased = load(tmp_path, {**matrix("mul1.4"), "m.bias": bias})
    x = rows(3, 128)
    assert torch.equal(biased(x), plain(x) + bias.float())


def test_old_files_pack_their_signs(tmp_path: Path) -> None:
    signs = {part: torch.where(rows(1, size)[0] < 0, -1.0, 1.0) for part, size in (("su", 128), ("sv", 256))}
    trellis = {"m.trellis": VECTORS["3inst.4.trellis"]}
    bits = {
        f"m.{part}": ((values < 0).int().view(-1, 16) << torch.arange(16)).sum(1).to(torch.int16)
        for part, values in signs.items()
    }
    scales = {f"m.{part}h": values.half() for part, values in signs.items()}
    x = rows(2, 128)
    assert torch.equal(load(tmp_path, {**trellis, **bits})(x), load(tmp_path, {**trellis, **scales})(x))


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    broken = matrix("mul1.3")
    broken["m.svh"] = broken["m.svh"].clone()
    broken["m.svh"][7] = torch.inf
    with pytest.raises(ModelDamagedError, match="m has scales that are not finite"):
        load(tmp_path, broken)
