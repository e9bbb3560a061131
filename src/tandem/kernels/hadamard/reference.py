"""The specification of the Hadamard rotation, in plain torch."""

from __future__ import annotations

import torch


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rotate every block of ``block`` consecutive values by the Sylvester matrix over √block.

    x: [..., D] float32, D a multiple of ``block``, a power of two. Returns a new [..., D] float32. The
    rotation is its own inverse. Only sums and differences of pairs are formed, so a row's bits depend on that
    row alone. Raises ValueError for other sizes.
    """
    D = x.shape[-1]
    if block < 1 or block & (block - 1) or D % block:
        raise ValueError(f"Hadamard blocks must be powers of two that divide the row: {block} into {D}")
    y = x.to(torch.float32)
    span = 1
    while span < block:
        pairs = y.reshape(*x.shape[:-1], D // (2 * span), 2, span)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((first + second, first - second), dim=-2)
        span *= 2
    rotated: torch.Tensor = y.reshape(x.shape) * block**-0.5
    return rotated
