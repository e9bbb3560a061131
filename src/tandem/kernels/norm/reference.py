"""RMSNorm in plain torch: the specification of ``cpu.py``."""

from __future__ import annotations

import torch


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [M, H] / sqrt(mean(x²) + eps) · weight [H], fp32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
