"""Root-mean-square normalisation with a learned weight, on the CPU."""

from __future__ import annotations

import numpy as np

from tandem.kernels.norm import cpu


class RMSNorm:
    """x / rms(x) · weight; weight float32 [H]."""

    def __init__(self, weight: np.ndarray, eps: float) -> None:
        self.weight = weight
        self.eps = np.float32(eps)

    @property
    def weight_bytes(self) -> int:
        return self.weight.nbytes

    def forward(self, x: np.ndarray) -> np.ndarray:
        """float32 [M, H] -> [M, H]."""
        out = np.empty_like(x)
        cpu.rmsnorm(x, self.weight, self.eps, out)
        return out
