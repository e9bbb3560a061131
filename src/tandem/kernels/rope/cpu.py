"""Rotary position embedding in numba, in place on the fused projection of queries, keys and values."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from tandem.kernels.jit import kernel, parallel_kernel
from tandem.kernels.lanes import BLOCK_ROWS
from tandem.kernels.norm.cpu import normalize


def angles(
    positions: np.ndarray,
    inverse_frequencies: np.ndarray,
    factor: np.float32,
    cosine: np.ndarray,
    sine: np.ndarray,
) -> None:
    """Fill cosine, sine float32 [M, rotary/2] from positions int32 [M], frequencies float32 [rotary/2]."""
    _angles(positions, inverse_frequencies, factor, cosine, sine)


def rotate(
    heads: np.ndarray,
    rotated_heads: int,
    cosine: np.ndarray,
    sine: np.ndarray,
) -> None:
    """Turn the first ``rotated_heads`` heads (queries, then keys) of heads float32 [M, heads, D] in place."""
    (_rotate_few if heads.shape[0] <= BLOCK_ROWS else _rotate_many)(heads, rotated_heads, cosine, sine)


def normalize_heads(
    heads: np.ndarray, query_heads: int, query_weight: np.ndarray, key_weight: np.ndarray, eps: np.float32
) -> None:
    """RMSNorm over D of every query head and key head of heads float32 [M, heads, D], in place.

    The keys follow the queries; as many value heads follow the keys and stay.
    """
    _normalize_heads(heads, query_heads, query_weight, key_weight, eps)


@kernel
def _angles(positions: Any, inverse_frequencies: Any, factor: Any, cosine: Any, sine: Any) -> None:
    for m in range(positions.size):
        for i in range(inverse_frequencies.size):
            phase = np.float64(np.float32(positions[m]) * inverse_frequencies[i])
            cosine[m, i] = np.float32(math.cos(phase)) * factor
            sine[m, i] = np.float32(math.sin(phase)) * factor


@kernel
def _rotate_row(heads: Any, m: Any, rotated_heads: Any, cosine: Any, sine: Any) -> None:
    half = cosine.shape[1]
    for h in range(rotated_heads):
        for i in range(half):
            first, second = heads[m, h, i], heads[m, h, half + i]
            heads[m, h, i] = first * cosine[m, i] - second * sine[m, i]
            heads[m, h, half + i] = second * cosine[m, i] + first * sine[m, i]


@kernel
def _rotate_few(heads: Any, rotated_heads: Any, cosine: Any, sine: Any) -> None:
    for m in range(heads.shape[0]):
        _rotate_row(heads, m, rotated_heads, cosine, sine)


@parallel_kernel
def _rotate_many(heads: Any, rotated_heads: Any, cosine: Any, sine: Any) -> None:
    for m in numba.prange(heads.shape[0]):
        _rotate_row(heads, m, rotated_heads, cosine, sine)


@parallel_kernel
def _normalize_heads(heads: Any, query_heads: Any, query_weight: Any, key_weight: Any, eps: Any) -> None:
    M, all_heads, D = heads.shape
    key_heads = (all_heads - query_heads) // 2
    for m in numba.prange(M):
        for h in range(query_heads + key_heads):
            weight = query_weight if h < query_heads else key_weight
            offset = (m * all_heads + h) * D
            normalize(heads, offset, D, weight, eps, heads, offset)
