"""EXL3 decoding against vectors made by the format's own software, bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.kernels.exl3.reference import (
    CODEBOOKS,
    codebook_values,
    decode_inner,
    decode_windows,
    exl3_linear,
    reconstruct,
)
from tandem.kernels.hadamard.reference import hadamard

DATA = Path(__file__).parent / "data"
VECTORS = load_file(DATA / "exl3_vectors.safetensors")
INNER_SHA256: dict[str, str] = json.loads((DATA / "exl3_inner_sha256.json").read_text())


def test_vectors_cover_every_codebook_and_rate() -> None:
    integer = {f"{codebook}.{k}" for codebook in CODEBOOKS for k in range(1, 9)}
    assert set(INNER_SHA256) == integer | {"mul1.1.5", "mul1.2.5", "mul1.3.5"}


@pytest.mark.parametrize("name", sorted(INNER_SHA256))
def test_decoded_tiles_have_the_formats_own_bits(name: str) -> None:
    inner = decode_inner(VECTORS[f"{name}.trellis"], name.split(".")[0])
    assert hashlib.sha256(inner.numpy().tobytes()).hexdigest() == INNER_SHA256[name]


@pytest.mark.parametrize("name", sorted(INNER_SHA256))
def test_products_match_the_formats_own_kernel(name: str) -> None:
    trellis, suh, svh, x, expected = (
        VECTORS[f"{name}.{part}"] for part in ("trellis", "suh", "svh", "x", "y")
    )
    codebook = name.split(".")[0]
    product = exl3_linear(x.float(), trellis, suh, svh, codebook)
    folded = x.float() @ reconstruct(trellis, suh, svh, codebook)
    assert (product - expected).norm() / expected.norm() < 1e-3  # its activations are fp16
    assert (product - folded).norm() / folded.norm() < 1e-6


@pytest.mark.parametrize(("width", "bits"), [(16 * k, k) for k in range(1, 9)])
def test_windows_overlap_and_close_the_ring(width: int, bits: int) -> None:
    trellis = torch.randint(
        -32768, 32768, (2, 3, width), generator=torch.Generator().manual_seed(bits)
    ).short()
    windows = decode_windows(trellis)
    following = windows.roll(-1, dims=-1)
    assert torch.equal(following >> bits, windows & (0xFFFF >> bits))


def test_codebooks_are_about_gaussian() -> None:
    for codebook, sigma in (("3inst", 1.2437), ("mcg", 1.2441), ("mul1", 1.0)):
        values = codebook_values(codebook).float()
        assert abs(values.mean()) < 0.01
        assert values.std().item() == pytest.approx(sigma, abs=0.005)
    assert codebook_values("mul1").unique().numel() == 913
    with pytest.raises(ValueError, match="one of"):
        codebook_values("2mad")


@pytest.mark.parametrize("block", [1, 2, 32, 128])
def test_hadamard_is_its_own_inverse_and_orthogonal(block: int) -> None:
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(block))
    y = hadamard(x, block)
    torch.testing.assert_close(hadamard(y, block), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(y.norm(), x.norm())
    assert all(torch.equal(hadamard(x[i], block), y[i]) for i in range(3))


def test_hadamard_refuses_other_sizes() -> None:
    with pytest.raises(ValueError, match="powers of two"):
        hadamard(torch.zeros(2, 96), 64)
