"""Matrices that are not quantized, laid out for the EXL3 products: rotated on both sides, in fp16 tiles.

With H its own inverse, W = H · (H · W · H) · H: the inner matrix takes the place of decoded tiles, and
everything about a product stays as it is. Rounding it to fp16 costs what rounding W would; small weights keep
their digits by a power of two that the output scales take back.
"""

from __future__ import annotations

import math

import torch

from tandem.kernels.exl3.operands import PLAIN, Exl3Matrix
from tandem.kernels.exl3.reference import ROTATION, TILE, tile_positions
from tandem.kernels.hadamard.reference import hadamard

_LARGEST = 256.0
"""What the largest weight becomes; two rotations make 128 times as much of it at most, which fp16 holds."""
_LEAST_SCALE = 2.0**-14
"""The smallest normal fp16."""
_OUTPUTS_AT_ONCE = 4096
"""Bounds the float32 copies of a vocabulary."""


def plain_matrix(weight: torch.Tensor) -> Exl3Matrix:
    """weight [n, k] in any float type -> the same matrix, padded to multiples of 128, on the same device."""
    n, k = weight.shape
    padded_n, padded_k = (-(-size // ROTATION) * ROTATION for size in (n, k))
    peak = float(weight.abs().max())
    scale = max(2.0 ** -math.floor(math.log2(_LARGEST / peak)), _LEAST_SCALE) if peak else 1.0
    codes = torch.empty(
        padded_k // TILE, padded_n // TILE, TILE * TILE, dtype=torch.int16, device=weight.device
    )
    for first in range(0, padded_n, _OUTPUTS_AT_ONCE):
        own = slice(first, min(first + _OUTPUTS_AT_ONCE, padded_n))
        part = torch.zeros(own.stop - first, padded_k, device=weight.device)
        given = weight[first : own.stop]
        part[: given.shape[0], :k] = given.float() / scale
        inner = hadamard(hadamard(part, ROTATION).T.contiguous(), ROTATION).half()
        tiles = inner.view(padded_k // TILE, TILE, -1, TILE).transpose(1, 2).flatten(-2)
        columns = slice(first // TILE, own.stop // TILE)
        codes[:, columns, tile_positions().to(weight.device)] = tiles.view(torch.int16)
    suh = torch.ones(padded_k, dtype=torch.float16, device=weight.device)
    svh = torch.full((padded_n,), scale, dtype=torch.float16, device=weight.device)
    suh[k:], svh[n:] = 0, 0
    return Exl3Matrix(codes, suh, svh, codebook=PLAIN)
