"""Linear kernels against plain torch, and the same bits for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.kernels.linear import cpu, reference
from tandem.kernels.norm import cpu as norm
from tandem.kernels.norm import reference as norm_reference
from tandem.layers.embedding import Embedding
from tandem.layers.linear import GatedLinear, Linear
from tandem.loader.base import BlockTensor
from tandem.quant.blocks import decode_rows
from tandem.quant.tiles import StoredTensor, tile, tile_gated

ROWS = (1, 2, 3, 5, 8, 9, 16, 63)
K, N = 224, 500  # more than two pieces of the kernel for many rows, the last one short
KINDS = ("F32", "BF16", "F16", "Q4_1", "Q8_0")


def stored(kind: str, rows: int, features: int, seed: int) -> tuple[StoredTensor, torch.Tensor]:
    """A random weight as a checkpoint holds it, and its values in fp32."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, features, generator=generator)
    float_types = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    if kind in float_types:
        dense = dense.to(float_types[kind])
        return dense, dense.float()
    random = np.random.default_rng(seed)
    block_bytes, halves = {"Q4_1": (20, 2), "Q8_0": (34, 1)}[kind]
    data = random.integers(0, 256, (rows * features // 32, block_bytes), dtype=np.uint8)
    scales = random.uniform(0.01, 0.1, (len(data), halves)).astype(np.float16)
    data[:, : 2 * halves] = scales.view(np.uint8)
    data = data.reshape(rows, -1)
    values = torch.from_numpy(decode_rows(kind, data).dequantize())
    return BlockTensor(kind, (rows, features), torch.from_numpy(data)), values


def activations(rows: int, features: int = K, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, features)).astype(np.float32)


def poisoned(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


@pytest.mark.parametrize("features_out", [1, 63, N])
@pytest.mark.parametrize("kind", KINDS)
def test_linear(kind: str, features_out: int) -> None:
    weight, values = stored(kind, features_out, K, seed=1)
    tiled = tile({"w": weight})
    bias = activations(1, features_out, seed=2)[0]
    x = activations(max(ROWS))
    every = None
    for rows in reversed(ROWS):
        out = poisoned(rows, features_out)
        cpu.linear(x[:rows], tiled.values, tiled.scale, tiled.minimum, out, bias, accumulate=False)
        expected = reference.linear(torch.from_numpy(x[:rows]), values, torch.from_numpy(bias))
        assert np.abs(out - expected.numpy()).max() < 1e-5 * max(1.0, float(expected.abs().max()))
        every = out if every is None else every
        assert np.array_equal(out, every[:rows])


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_adding_to_a_residual(kind: str) -> None:
    weight, values = stored(kind, N, K, seed=3)
    layer = Linear(tile({"w": weight}))
    residual = activations(9, N, seed=4)
    expected = reference.linear(
        torch.from_numpy(activations(9)), values, residual=torch.from_numpy(residual.copy())
    )
    layer.add_to(residual, activations(9))
    assert np.abs(residual - expected.numpy()).max() < 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("features_out", [1, 40, 63, N])
@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_1"])
def test_gated(kind: str, features_out: int) -> None:
    (gate, gate_values), (up, up_values) = (stored(kind, features_out, K, seed) for seed in (5, 6))
    layer = GatedLinear(tile_gated({"gate": gate, "up": up}))
    every = layer.forward(activations(max(ROWS)))
    assert every.shape == (max(ROWS), features_out)
    x = torch.from_numpy(activations(max(ROWS)))
    expected = reference.gated_linear(x, gate_values, up_values).numpy()
    assert np.abs(every - expected).max() < 1e-5 * np.abs(expected).max()
    for rows in ROWS:
        assert np.array_equal(layer.forward(activations(max(ROWS))[:rows]), every[:rows])


def test_rows_are_blind_to_their_neighbours() -> None:
    weight, _ = stored("Q4_1", N, K, seed=1)
    layer = Linear(tile({"w": weight}))
    x = activations(8)
    expected = layer.forward(x)[3]
    x[[0, 1, 2, 4, 5, 6, 7]] = np.nan
    assert np.array_equal(layer.forward(x)[3], expected)


def test_not_a_number_is_passed_on() -> None:
    weight, _ = stored("F32", 40, K, seed=1)
    x = activations(2)
    x[1, 50] = np.nan
    for layer in (Linear(tile({"w": weight})), GatedLinear(tile_gated({"gate": weight, "up": weight}))):
        out = layer.forward(x)
        assert np.isfinite(out[0]).all()
        assert np.isnan(out[1]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_embedding_rows(kind: str) -> None:
    weight, values = stored(kind, 63, K, seed=8)
    ids = np.array([0, 62, 17, 17, 31], np.int64)
    assert np.array_equal(Embedding(tile({"w": weight})).forward(ids), values[ids].numpy())


@pytest.mark.parametrize("size", [1, 16, 63, 500, 576])
def test_rmsnorm(size: int) -> None:
    x, weight = activations(20, size), activations(1, size, seed=9)[0]
    out = poisoned(20, size)
    norm.rmsnorm(x, weight, np.float32(1e-5), out)
    expected = norm_reference.rmsnorm(torch.from_numpy(x), torch.from_numpy(weight), 1e-5)
    assert np.abs(out - expected.numpy()).max() < 1e-5
    alone = poisoned(1, size)
    norm.rmsnorm(x[13:14], weight, np.float32(1e-5), alone)
    assert np.array_equal(alone[0], out[13])
