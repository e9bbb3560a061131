"""Elementwise functions in torch whose result depends on the value alone, not on where it lies.

torch computes ``sigmoid``, ``silu`` and ``softplus`` on the CPU by vectors and the last few values of a call
one by one with another implementation, so that the last bits of a row change with the rows beside it.
``exp`` and ``log`` treat every value alike (measured, 2.13; tests/glm/test_operators.py would notice a
change).
"""

from __future__ import annotations

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x).add_(1).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / torch.exp(-x).add_(1)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + eˣ), without overflow for large x."""
    return x.clamp(min=0) + torch.log(1 + torch.exp(-x.abs()))
