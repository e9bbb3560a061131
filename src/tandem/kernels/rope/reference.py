"""Rotary position embedding in plain torch: the specification of ``cpu.py``.

Half-split pairing (element i turns with element i + rotary/2), as in Hugging Face checkpoints.
"""

from __future__ import annotations

import torch


def angles(
    positions: torch.Tensor, inverse_frequencies: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [M, rotary/2] fp32, times ``factor``; positions int32 [M]."""
    phase = positions.float()[:, None] * inverse_frequencies[None, :]
    return phase.cos() * factor, phase.sin() * factor


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """x [M, heads, D]; the first 2·cosine.shape[1] elements of each head turn, the rest stay."""
    half = cosine.shape[1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)
