"""EXL3 products in numba: tiles are decoded as they are needed, the same bits for any number of rows.

Every output is one chain of fused multiply-adds over the rotated inputs in ascending order, from zero. A
tile's sixteen columns are the lanes, so nothing is summed across lanes, and a row meets the same operations
whether it comes alone or with others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from tandem.kernels.exl3.reference import TILE, codebook_values, tile_positions, window_ends
from tandem.kernels.jit import parallel_kernel, parallel_region
from tandem.kernels.lanes import fma, load, splat, store


@dataclass(frozen=True, slots=True)
class _Windows:
    """Where the windows of a tile lie: per element of the row-major tile two words and a shift."""

    previous: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]


@cache
def _windows(width: int) -> _Windows:
    ends = window_ends(width)[tile_positions()]
    last = (ends - 1) // TILE
    # Words lie in pairs with their halves swapped: word i of the ring is at index i ^ 1.
    return _Windows(
        previous=((last - 1) % width ^ 1).numpy(),
        last=(last ^ 1).numpy(),
        shift=((last + 1) * TILE - ends).numpy(),
    )


@cache
def _values(codebook: str) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = codebook_values(codebook).float().numpy()
    return values


def product(x: torch.Tensor, trellis: torch.Tensor, codebook: str) -> torch.Tensor:
    """x [M, k] float32 times the inner matrix: [M, n] float32. x is already scaled and rotated.

    trellis: int16 [k/16, n/16, 16·K]; codebook: one of reference.CODEBOOKS.
    """
    out = torch.empty(x.shape[0], trellis.shape[1] * TILE)
    windows = _windows(trellis.shape[2])
    with parallel_region(multiply_adds=x.shape[0] * x.shape[1] * out.shape[1]):
        _product(
            x.contiguous().numpy(),
            trellis.numpy().view(np.uint16),
            _values(codebook),
            windows.previous,
            windows.last,
            windows.shift,
            out.numpy(),
        )
    return out


@parallel_kernel
def _product(x: Any, trellis: Any, values: Any, previous: Any, last: Any, shift: Any, out: Any) -> None:
    M, tiles_k, tiles_n = x.shape[0], trellis.shape[0], trellis.shape[1]
    n = tiles_n * 16
    for tile_n in numba.prange(tiles_n):
        tile = np.empty(256, dtype=np.float32)
        for m in range(M):
            out[m, tile_n * 16 : tile_n * 16 + 16] = np.float32(0)
        for tile_k in range(tiles_k):
            words = trellis[tile_k, tile_n]
            for element in range(256):
                high, low = np.uint32(words[previous[element]]), np.uint32(words[last[element]])
                window = ((high << np.uint32(16)) | low) >> np.uint32(shift[element])
                tile[element] = values[window & np.uint32(0xFFFF)]
            for m in range(M):
                total = load(out, m * n + tile_n * 16)
                for row in range(16):
                    total = fma(load(tile, row * 16), splat(x[m, tile_k * 16 + row]), total)
                store(out, m * n + tile_n * 16, total)
