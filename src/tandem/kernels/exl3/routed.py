"""EXL3 products of a chunk's routed rows by Hopper's warp groups, weights decoded into their registers.

Alphabet: P pairs, G groups, M matrices a group, k inputs, n outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.blocks import BLOCK_ROWS, Blocks
from tandem.kernels.exl3.decoded import forms_macro
from tandem.kernels.exl3.operands import Exl3Stack
from tandem.kernels.nvrtc import KernelSource, capability_of, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "routed_chunk.cu")
"""For sm_90a."""
_STEP, _OUTPUTS, _THREADS, _MOST_STAGES = 64, 256, 640, 5
_SHARED_BYTES = 226 * 1024


def has_warp_groups(device: torch.device) -> bool:
    """Whether the card has Hopper's products of warp groups."""
    return capability_of(device)[0] == 9


@dataclass(slots=True)
class RoutedChunk:
    """Products on one card."""

    device: torch.device
    cache_dir: Path | None

    def product(
        self, rotated: torch.Tensor, stack: Exl3Stack, blocks: Blocks, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """rotated fp16 [G, k/64, P/8, 8, 64], swizzled -> outputs, one a group (at most two), fp16 or fp32
        [P, n].
        """
        halves = max(int(2 * form.bits) for form in stack.forms)
        stage, sums = BLOCK_ROWS * _STEP * 2 + _STEP // 16 * _OUTPUTS * halves, 2 * BLOCK_ROWS * 132 * 4
        stages = min(_MOST_STAGES, (_SHARED_BYTES - 1024) // stage)
        source = SOURCE.with_defines(FORMS=forms_macro(stack.forms), MOST_HALVES=halves, STAGES=stages)
        kernel_module(source, self.device, self.cache_dir).launch(
            "routed_chunk",
            (-(-stack.widest // _OUTPUTS), blocks.matrix.numel(), stack.groups),
            (_THREADS, 1, 1),
            stack.addresses,
            stack.form_of,
            stack.offset_addresses,
            rotated,
            *blocks.arguments(stack, outputs),
            shared_bytes=1024 + max(stages * stage, sums),  # 1024 to align the stages, or the sums after them
        )
