"""The linear operators in plain torch: the specification of ``cpu.py``.

Alphabet: M rows, K input features, N output features.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """residual [M, N] + x [M, K] · weight [N, K]ᵀ + bias [N], all fp32."""
    out = functional.linear(x, weight, bias)
    return out if residual is None else residual + out


def gated_linear(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """SwiGLU: silu(x · gateᵀ) · (x · upᵀ), [M, K] -> [M, N]."""
    return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)


def dequantize(quants: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> torch.Tensor:
    """Grouped weights: quants int [N, K], scale and minimum fp32 [N, K / group] -> fp32 [N, K]."""
    group = quants.shape[1] // scale.shape[1]
    wide = scale.repeat_interleave(group, 1), minimum.repeat_interleave(group, 1)
    return quants.float() * wide[0] + wide[1]
