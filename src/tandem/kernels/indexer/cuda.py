"""The best pools of each row on a CUDA card, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.nvrtc import KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "top_pools.cu")
SHARED_BYTES = 4 * (4 * 2048 + 8192)
"""Histograms and candidates."""


def score_pitch(pools: int) -> int:
    """Floats a row of scores takes: selection reads four at once."""
    return -(-pools // 4) * 4


@dataclass(slots=True)
class TopPools:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None

    def select(
        self, scores: torch.Tensor, positions: torch.Tensor, chosen: torch.Tensor, pool_tokens: int
    ) -> None:
        """scores fp32 [R, max_pools], a multiple of four; positions int32 [R] -> chosen int32 [R, count]
        ascending, ties to the earlier pool; untouched for rows that see no more than ``count``.
        """
        rows, max_pools = scores.shape
        kernel_module(SOURCE, self.device, self.cache_dir).launch(
            "top_pools",
            (rows, 1, 1),
            (1024, 1, 1),
            scores,
            positions,
            chosen,
            max_pools,
            pool_tokens,
            chosen.shape[1],
            shared_bytes=SHARED_BYTES,
        )
