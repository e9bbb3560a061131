"""Absorbed latent attention of a prefill chunk on sm_90: latents in fp16 or 8 bits, fp32 sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from pathlib import Path

import torch

from tandem.kernels.mla.cuda import DeviceCache
from tandem.kernels.mla.operands import Where
from tandem.kernels.mla.shapes import HEADS, LATENT, by_warp_groups
from tandem.kernels.nvrtc import KernelSource, capability_of, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "mla_chunk.cu")
_SHARED_BYTES = 1024 + 3 * 64 * LATENT * 2 + 2 * 64 * 64 * 2
"""To align; queries, two blocks of tokens and their weights."""


@dataclass(slots=True)
class ChunkAttention:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None

    def can(self, heads: int, cache: DeviceCache) -> bool:
        """Whether card and model suit the kernel; ``triton.attend`` serves the others."""
        return by_warp_groups(capability_of(self.device), heads, cache.latents.shape[1])

    def attend(
        self, q: torch.Tensor, cache: DeviceCache, where: Where, scale: float, out: torch.Tensor
    ) -> None:
        """q, out: fp16 [R, H, 512]; softmax(scale · q cᵀ) c over the tokens of ``where``."""
        rows, heads, _ = q.shape
        source = SOURCE.with_defines(
            PAGE=where.page_tokens, POOL=where.pool_tokens, Q8=int(cache.scales is not None)
        )
        kernel_module(source, self.device, self.cache_dir).launch(
            "attend_chunk",
            (heads // HEADS, rows, 1),
            (384, 1, 1),
            q,
            cache.latents,
            cache.scales,
            where.positions,
            where.run_of_row,
            where.page_tables,
            where.chosen,
            out,
            heads,
            where.page_tables.shape[1],
            where.chosen.shape[1],
            scale / log(2.0),
            shared_bytes=_SHARED_BYTES,
        )
