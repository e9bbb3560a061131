"""Products' results made up for the kernels that read them: random sums, and what they mean."""

from __future__ import annotations

import torch
from tests.gpu.cards import DEVICE

from tandem.kernels.exl3.operands import Sums
from tandem.kernels.hadamard.reference import hadamard


def random_sums(splits: int, pairs: int, pitch: int) -> Sums:
    """Of decoded weights."""
    scale = torch.tensor([2.0 ** (i % 5 - 2) for i in range(pairs)], device=DEVICE)
    return Sums(torch.randn(splits, pairs, pitch, device=DEVICE), None, scale)


def meaning(sums: Sums, svh: torch.Tensor, pairs: slice | list[int], outputs: int) -> torch.Tensor:
    """float32 [P, n] of some pairs of one matrix, on the card. svh: fp16 [n]."""
    total = sums.values[:, pairs, :outputs].sum(0) * sums.scale[pairs, None]
    return hadamard(total, 128) * svh.float()
