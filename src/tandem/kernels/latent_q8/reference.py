"""The specification of the 8-bit latent format, in plain torch.

A latent vector is cut into groups of 32. Each group is rotated by Hadamard-32, which spreads an outlier over
the whole group, and stored as 32 signed bytes and one fp16 scale::

    s = max |v| / 127, rounded up in fp16        code_i = round(v_i / s) in −127..127        v_i ≈ code_i · s

The scale is rounded up so that no code leaves its range. Groups whose largest value is under 2⁻²⁴ · 127 are
stored as zeros of scale zero only if they are all zero; the smallest fp16 scale is used otherwise.
"""

from __future__ import annotations

import torch

from tandem.kernels.hadamard.reference import hadamard

GROUP = 32
_LARGEST_CODE = 127
_LARGEST_SCALE = 65504.0


def encode(latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """latents: float32 [R, L], L a multiple of 32. Returns (codes int8 [R, L], scales fp16 [R, L/32])."""
    R, L = latents.shape
    rotated = hadamard(latents, GROUP).view(R, L // GROUP, GROUP)
    exact = rotated.abs().amax(-1) / _LARGEST_CODE
    nearest = exact.clamp(max=_LARGEST_SCALE).to(torch.float16)
    larger = (nearest.view(torch.int16) + 1).view(torch.float16)
    scales = torch.where((nearest.float() < exact) & (nearest < _LARGEST_SCALE), larger, nearest)
    divisor = torch.where(scales == 0, 1.0, scales.float())
    codes = (rotated / divisor[..., None]).round().clamp(-_LARGEST_CODE, _LARGEST_CODE).to(torch.int8)
    return codes.view(R, L), scales


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The inverse up to rounding: codes int8 [R, L], scales fp16 [R, L/32] → float32 [R, L]."""
    R, L = codes.shape
    rotated = codes.float().view(R, L // GROUP, GROUP) * scales.float()[..., None]
    return hadamard(rotated.view(R, L), GROUP)
