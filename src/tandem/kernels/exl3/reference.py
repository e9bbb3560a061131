"""The specification of EXL3 decoding, in plain torch.

Alphabet: K bits a weight (possibly a half), k inputs, n outputs, P = 256 positions of a tile.

A tile is a ring of P·K bits. Position p appends its own bits to a 16-bit window; the window is the codebook
index of p's weight, so neighbours overlap and the first positions borrow from the ring's end::

    ring      | bits of p=0 | bits of p=1 | bits of p=2 | …                       | bits of p=255 |
    window 2            [ 16 bits ending here ^ )
    window 0  ..ending here ^ ), begun in the bits of p=255

Half rates alternate K−½ bits (even p) and K+½ bits (odd p).
"""

from __future__ import annotations

from functools import cache

import torch

from tandem.kernels.hadamard.reference import hadamard

TILE = 16
ROTATION = 128
"""Hadamard block on both sides of a matrix."""
CODEBOOKS = ("3inst", "mcg", "mul1")

_MASK, _FLIP = 0x8FFF8FFF, 0x3B603B60


@cache
def codebook_values(codebook: str) -> torch.Tensor:
    """The weight of each 16-bit window: fp16 [65536]. ``codebook`` is one of CODEBOOKS."""
    index = torch.arange(65536, dtype=torch.int64)
    if codebook == "mul1":
        product = (index * 0x83DCD12D) & 0xFFFFFFFF
        byte_sum = sum((product >> shift) & 0xFF for shift in (0, 8, 16, 24))
        # One fused multiply-add in fp16: in float64 product and sum are exact, which leaves one rounding.
        scale = torch.tensor([0x1EEE], dtype=torch.int16).view(torch.float16).double()
        bias = torch.tensor([0xC931 - 0x10000], dtype=torch.int16).view(torch.float16).double()
        return ((1024 + byte_sum) * scale + bias).to(torch.float16)
    if codebook == "3inst":
        product = (index * 89226354 + 64248484) & 0xFFFFFFFF
    elif codebook == "mcg":
        product = (index * 0xCBAC1FED) & 0xFFFFFFFF
    else:
        raise ValueError(f"EXL3 codebook must be one of {CODEBOOKS}, not {codebook!r}")
    halves = (product & _MASK) ^ _FLIP
    low, high = (_as_fp16(halves & 0xFFFF), _as_fp16(halves >> 16))
    # fp32 holds enough bits for the sum of two fp16 to round to fp16 as if it had been exact.
    return (low.float() + high.float()).to(torch.float16)


def _as_fp16(bits: torch.Tensor) -> torch.Tensor:
    return torch.where(bits >= 0x8000, bits - 0x10000, bits).to(torch.int16).view(torch.float16)


@cache
def window_ends(width: int) -> torch.Tensor:
    """The bit after each position's window, int64 [256], for tiles stored in ``width`` 16-bit words."""
    position = torch.arange(256)
    return ((position + 1) * width) // TILE


@cache
def tile_positions() -> torch.Tensor:
    """The position of each element of a row-major tile, int64 [256]: the fragment order of a matrix unit."""
    p = torch.arange(256)
    row = 2 * (p // 8 % 4) + p % 2 + 8 * (p // 2 % 2)
    column = p // 32 + 8 * (p // 4 % 2)
    return torch.argsort(row * TILE + column)


def decode_windows(trellis: torch.Tensor) -> torch.Tensor:
    """Codebook indices of a matrix, int32 [k/16, n/16, 256], from ``trellis`` int16 [k/16, n/16, 16·K]."""
    width = trellis.shape[-1]
    # The ring lies in little-endian 32-bit words, read from their top bit: halves of each pair are swapped.
    words = (trellis.to(torch.int32) & 0xFFFF).unflatten(-1, (width // 2, 2)).flip(-1).flatten(-2)
    ends = window_ends(width)
    last = (ends - 1) // TILE
    both = (words[..., (last - 1) % width] << 16) | words[..., last]
    windows: torch.Tensor = (both >> ((last + 1) * TILE - ends).to(torch.int32)) & 0xFFFF
    return windows


def decode_inner(trellis: torch.Tensor, codebook: str) -> torch.Tensor:
    """The matrix between the two rotations, fp16 [k, n], bit for bit what the format's own kernels decode.

    trellis: int16 [k/16, n/16, 16·K]; codebook: one of CODEBOOKS.
    """
    tiles_k, tiles_n, _ = trellis.shape
    weights = codebook_values(codebook)[decode_windows(trellis)[..., tile_positions()]]
    tiles = weights.view(tiles_k, tiles_n, TILE, TILE)
    return tiles.transpose(1, 2).reshape(tiles_k * TILE, tiles_n * TILE)


def reconstruct(trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor, codebook: str) -> torch.Tensor:
    """The matrix in its original basis, float32 [k, n]: diag(suh) · H · inner · H · diag(svh).

    suh: fp16 [k], svh: fp16 [n].
    """
    inner = decode_inner(trellis, codebook).float()
    left = hadamard(inner.T.contiguous(), ROTATION).T
    return suh.float()[:, None] * hadamard(left.contiguous(), ROTATION) * svh.float()


def exl3_linear(
    x: torch.Tensor, trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor, codebook: str
) -> torch.Tensor:
    """x [rows, k] float32 times the matrix, [rows, n] float32, without forming the original basis."""
    rotated = hadamard(x * suh.float(), ROTATION)
    product = rotated @ decode_inner(trellis, codebook).float()
    return hadamard(product, ROTATION) * svh.float()
