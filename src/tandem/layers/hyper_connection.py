"""A sublayer between residual streams: mixed in, normalized, computed, mixed out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.kernels.hyper_connection import cpu
from tandem.kernels.hyper_connection import reference as mhc
from tandem.layers.operator import Operator


@dataclass(frozen=True, slots=True)
class HyperConnectionWeights:
    mixer: Operator
    """S·D inputs → (2 + S)·S coefficients."""
    base: torch.Tensor
    """[(2 + S)·S] float32."""
    scale: torch.Tensor
    """[3] float32."""


class HyperConnection:
    """The mixing around one sublayer. R rows, S streams of D values."""

    def __init__(
        self, weights: HyperConnectionWeights, *, sinkhorn_iterations: int, eps: float, norm_eps: float
    ) -> None:
        self._weights = weights
        self._iterations = sinkhorn_iterations
        self._eps = eps
        self._norm_eps = norm_eps

    def coefficients(self, streams: torch.Tensor) -> mhc.MixCoefficients:
        """The mixing weights of streams [R, S, D]."""
        projected = self._weights.mixer(mhc.normalize_streams(streams, self._norm_eps))
        return cpu.coefficients(
            projected, self._weights.scale, self._weights.base, self._iterations, self._eps
        )
