"""Elementary functions on Lanes, for use inside kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from tandem.kernels.jit import kernel
from tandem.kernels.lanes import fma, scale_by_power_of_two, splat, where_less

_LOWEST = np.float32(-86.0)  # below it e**x is taken as zero: 4.5e-38, the edge of the normal numbers
_HIGHEST = np.float32(88.0)
_LOG2_E = np.float32(1.44269504)
_ROUNDER = np.float32(12582912.0)  # 1.5 · 2**23: adding it rounds to an integer, kept in the low bits
_MINUS_LN2_HIGH = np.float32(-0.693359375)
_MINUS_LN2_LOW = np.float32(2.12194440e-4)
# Coefficients of the degree-5 minimax polynomial of (e**r - 1 - r) / r**2 on [-ln2/2, ln2/2].
_P0 = np.float32(1.9875691500e-4)
_P1 = np.float32(1.3981999507e-3)
_P2 = np.float32(8.3334519073e-3)
_P3 = np.float32(4.1665795894e-2)
_P4 = np.float32(1.6666665459e-1)
_P5 = np.float32(5.0000001201e-1)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


@kernel
def exp(x: Any) -> Any:
    """e**x per lane to about 1e-7 relative; 0 below -86, capped at e**88, NaN for NaN."""
    clipped = where_less(x, splat(_LOWEST), splat(_LOWEST), x)
    clipped = where_less(splat(_HIGHEST), clipped, splat(_HIGHEST), clipped)
    shifted = fma(clipped, splat(_LOG2_E), splat(_ROUNDER))
    n = shifted - splat(_ROUNDER)
    r = fma(n, splat(_MINUS_LN2_HIGH), clipped)
    r = fma(n, splat(_MINUS_LN2_LOW), r)
    p = fma(splat(_P0), r, splat(_P1))
    p = fma(p, r, splat(_P2))
    p = fma(p, r, splat(_P3))
    p = fma(p, r, splat(_P4))
    p = fma(p, r, splat(_P5))
    p = fma(p, r * r, r) + splat(_ONE)
    return where_less(x, splat(_LOWEST), splat(_ZERO), scale_by_power_of_two(p, shifted))


@kernel
def silu(x: Any) -> Any:
    """x / (1 + e**-x) per lane."""
    return x / (splat(_ONE) + exp(splat(_ZERO) - x))
