"""Linear layers over tiled weights, on the CPU."""

from __future__ import annotations

import numpy as np

from tandem.kernels.linear import cpu
from tandem.quant.base import TiledWeight

_NO_BIAS = np.empty(0, np.float32)


class Linear:
    """x · weightᵀ + bias; ``bias`` float32 [out_features] or None."""

    def __init__(self, weight: TiledWeight, bias: np.ndarray | None = None) -> None:
        self.weight = weight
        self.bias = _NO_BIAS if bias is None else bias

    @property
    def weight_bytes(self) -> int:
        return self.weight.memory_bytes + self.bias.nbytes

    def forward(self, x: np.ndarray) -> np.ndarray:
        """float32 [M, in_features] -> [M, out_features]."""
        out = np.empty((x.shape[0], self.weight.out_features), np.float32)
        w = self.weight
        cpu.linear(x, w.values, w.scale, w.minimum, out, self.bias, accumulate=False)
        return out

    def add_to(self, residual: np.ndarray, x: np.ndarray) -> None:
        """residual [M, out_features] += the layer's output, in place."""
        w = self.weight
        cpu.linear(x, w.values, w.scale, w.minimum, residual, self.bias, accumulate=True)


class GatedLinear:
    """silu(x · gateᵀ) · (x · upᵀ); ``weight`` holds both, tile by tile in turn (``tile_gated``)."""

    def __init__(self, weight: TiledWeight) -> None:
        self.weight = weight

    @property
    def weight_bytes(self) -> int:
        return self.weight.memory_bytes

    def forward(self, x: np.ndarray) -> np.ndarray:
        """float32 [M, in_features] -> [M, out_features]."""
        out = np.empty((x.shape[0], self.weight.out_features), np.float32)
        w = self.weight
        cpu.gated_linear(x, w.values, w.scale, w.minimum, out)
        return out
