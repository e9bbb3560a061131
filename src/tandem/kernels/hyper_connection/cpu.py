"""Mixing coefficients in numba: 24 values a row and twenty rounds of divisions are too little for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.kernels.hyper_connection.reference import MixCoefficients
from tandem.kernels.jit import kernel

_ONE = np.float32(1.0)
_TWO = np.float32(2.0)


def coefficients(
    projected: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, sinkhorn_iterations: int, eps: float
) -> MixCoefficients:
    """As ``reference.coefficients``; every row is computed by itself."""
    R = projected.shape[0]
    S = round((1 + projected.shape[1]) ** 0.5) - 1
    pre, post, mix = torch.empty(R, S), torch.empty(R, S), torch.empty(R, S, S)
    arrays = (x.numpy() for x in (projected, scale, base, pre, post, mix))
    _coefficients(*arrays, sinkhorn_iterations, np.float32(eps))
    return MixCoefficients(pre, post, mix)


@kernel
def _coefficients(
    projected: Any, scale: Any, base: Any, pre: Any, post: Any, mix: Any, iterations: Any, eps: Any
) -> None:
    R, S = pre.shape
    for r in range(R):
        for s in range(S):
            entering = projected[r, s] * scale[0] + base[s]
            leaving = projected[r, S + s] * scale[1] + base[S + s]
            pre[r, s] = _ONE / (_ONE + np.exp(-entering)) + eps
            post[r, s] = _TWO / (_ONE + np.exp(-leaving))
            for t in range(S):
                column = 2 * S + s * S + t
                mix[r, s, t] = projected[r, column] * scale[2] + base[column]
        _softmax_rows(mix[r], eps)
        _divide_columns(mix[r], eps)
        for _ in range(iterations - 1):
            _divide_rows(mix[r], eps)
            _divide_columns(mix[r], eps)


@kernel
def _softmax_rows(mix: Any, eps: Any) -> None:
    S = mix.shape[0]
    for s in range(S):
        largest = mix[s].max()
        total = np.float32(0.0)
        for t in range(S):
            mix[s, t] = np.exp(mix[s, t] - largest)
            total += mix[s, t]
        for t in range(S):
            mix[s, t] = mix[s, t] / total + eps


@kernel
def _divide_rows(mix: Any, eps: Any) -> None:
    S = mix.shape[0]
    for s in range(S):
        total = eps
        for t in range(S):
            total += mix[s, t]
        for t in range(S):
            mix[s, t] /= total


@kernel
def _divide_columns(mix: Any, eps: Any) -> None:
    S = mix.shape[0]
    for t in range(S):
        total = eps
        for s in range(S):
            total += mix[s, t]
        for s in range(S):
            mix[s, t] /= total
