"""Block types against the gguf package's own dequantization, bit for bit; tiles hold the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.layers.embedding import Embedding
from tandem.loader.base import BlockTensor
from tandem.quant.base import WeightFormat, common_format, weight_format
from tandem.quant.blocks import decode_rows
from tandem.quant.tiles import tile, tile_gated

HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


def random_blocks(dtype: str, rows: int, features: int, seed: int = 0) -> np.ndarray:
    """Random bits, but for the half floats, which are ordinary numbers."""
    random = np.random.default_rng(seed)
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    data = random.integers(0, 256, (rows * features // elements, size), dtype=np.uint8)
    for offset in HALVES[dtype]:
        scale = random.standard_normal((len(data), 1)).astype(np.float16)
        data[:, offset : offset + 2] = scale.view(np.uint8)
    return data.reshape(rows, -1)


def table(weight: BlockTensor | torch.Tensor, rows: int) -> np.ndarray:
    return Embedding(tile({"w": weight})).forward(np.arange(rows))


@pytest.mark.parametrize("dtype", HALVES)
def test_decoding_is_bit_exact(dtype: str) -> None:
    data = random_blocks(dtype, 19, 512)
    expected = dequantize(data, GGMLQuantizationType[dtype])
    assert np.array_equal(decode_rows(dtype, data).dequantize(), expected)
    weight = BlockTensor(dtype, (19, 512), torch.from_numpy(data))
    assert np.array_equal(table(weight, 19), expected)
    tiled = tile({"w": weight})
    assert tiled.memory_bytes == weight_format(dtype, "w").memory_bytes(19, 512)


@pytest.mark.parametrize("rows", [1, 33, 1500])
def test_dense_tiles(rows: int) -> None:
    dense = torch.randn(rows, 40)
    assert np.array_equal(table(dense, rows), dense.numpy())
    assert np.array_equal(table(dense.bfloat16(), rows), dense.bfloat16().float().numpy())
    assert np.array_equal(table(dense.half(), rows), dense.half().float().numpy())


@pytest.mark.parametrize(
    ("dtypes", "kept"),
    [
        (("Q4_K", "Q6_K", "Q4_K"), WeightFormat(8, 16)),
        (("Q4_0", "Q4_1"), WeightFormat(4, 32, scale_bits=16)),
        (("Q4_0", "Q8_0"), WeightFormat(8, 16)),
        (("F16", "Q8_0"), WeightFormat(32)),
        (("F16", "BF16"), WeightFormat(32)),
    ],
)
def test_fusing_different_types_is_exact(dtypes: tuple[str, ...], kept: WeightFormat) -> None:
    assert common_format({str(i): dtype for i, dtype in enumerate(dtypes)}) == kept
    parts: list[BlockTensor | torch.Tensor] = []
    expected = []
    for seed, dtype in enumerate(dtypes):
        if dtype in HALVES:
            data = random_blocks(dtype, 20, 256, seed)
            parts.append(BlockTensor(dtype, (20, 256), torch.from_numpy(data)))
            expected.append(dequantize(data, GGMLQuantizationType[dtype]))
        else:
            kind = {"F16": torch.float16, "F32": torch.float32, "BF16": torch.bfloat16}[dtype]
            parts.append(torch.randn(20, 256).to(kind))
            expected.append(parts[-1].float().numpy())
    fused = tile({str(i): part for i, part in enumerate(parts)})
    found = Embedding(fused).forward(np.arange(20 * len(parts)))
    assert np.array_equal(found, np.concatenate(expected))


def test_rows_can_be_reordered_and_gated_pairs_alternate() -> None:
    first, second = torch.randn(20, 32), torch.randn(20, 32)
    order = np.random.default_rng(0).permutation(20)
    found = Embedding(tile({"a": first, "b": second}, [order, np.arange(20)])).forward(np.arange(40))
    assert np.array_equal(found, torch.cat([first[order], second]).numpy())
    gated = tile_gated({"gate": first, "up": second})
    rows = Embedding(gated).forward(np.arange(64))
    assert gated.out_features == 20
    assert np.array_equal(rows[:16], first[:16].numpy())
    assert np.array_equal(rows[16:32], second[:16].numpy())
    assert np.array_equal(rows[48:52], second[16:].numpy())


def test_a_scale_that_is_no_number_is_damage() -> None:
    data = random_blocks("Q8_0", 4, 64)
    data[3, :2] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(ModelDamagedError, match=r"blk\.7\.ffn_up"):
        tile({"blk.7.ffn_up": BlockTensor("Q8_0", (4, 64), torch.from_numpy(data))})


def test_unknown_types_are_named() -> None:
    with pytest.raises(ModelUnsupportedError, match=r"blk\.0.*IQ2_XXS"):
        weight_format("IQ2_XXS", "blk.0.attn_q.weight")
