"""RMSNorm in numba: a row's sum of squares runs in sixteen chains, then a fixed tree, then the tail."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tandem.kernels.jit import kernel, parallel_kernel
from tandem.kernels.lanes import BLOCK_ROWS, LANES, fma, load, splat, tree_sum

_ZERO = np.float32(0.0)


def rmsnorm(x: np.ndarray, weight: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    """x, out float32 [M, H] contiguous, weight float32 [H]; any H ≥ 1. ``out`` may be ``x``."""
    (_few if x.shape[0] <= BLOCK_ROWS else _many)(x, weight, eps, out)


@kernel
def normalize(x: Any, offset: Any, size: Any, weight: Any, eps: Any, out: Any, out_offset: Any) -> None:
    """One vector of ``size`` elements, between flat positions of two contiguous arrays."""
    squares = splat(_ZERO)
    for i in range(0, size - LANES + 1, LANES):
        value = load(x, offset + i)
        squares = fma(value, value, squares)
    total = tree_sum(squares)
    source, target = x.reshape(-1), out.reshape(-1)
    for i in range(size - size % LANES, size):
        total += source[offset + i] * source[offset + i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
    for i in range(size):
        target[out_offset + i] = source[offset + i] * factor * weight[i]


@kernel
def _few(x: Any, weight: Any, eps: Any, out: Any) -> None:
    H = x.shape[1]
    for m in range(x.shape[0]):
        normalize(x, m * H, H, weight, eps, out, m * H)


@parallel_kernel
def _many(x: Any, weight: Any, eps: Any, out: Any) -> None:
    H = x.shape[1]
    for m in numba.prange(x.shape[0]):
        normalize(x, m * H, H, weight, eps, out, m * H)
