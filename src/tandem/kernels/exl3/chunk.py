"""EXL3 products of a prefill chunk on a CUDA card: fp16 rows, weights decoded inside the product.

Alphabet: R rows, P pairs (rows sorted by matrix), B blocks of them, G groups, M matrices a group, k inputs, n
outputs.

Rotated inputs are fp16 [G, P, k]; on Hopper those of routed rows lie in the same memory in another order, the
one ``routed_chunk.cu`` describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.blocks import TILE_SHARED_BYTES, Blocks, tiles_of
from tandem.kernels.exl3.decoded import DecodedChunk
from tandem.kernels.exl3.operands import Exl3Stack
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.exl3.routed import RoutedChunk, has_warp_groups
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_chunk.cu")
ROTATIONS_SOURCE = KernelSource(Path(__file__).parent / "csrc" / "chunk_rotations.cu")
LIBRARY_ROWS = 1024
"""From so many rows on, one matrix is decoded once for all of them."""


@dataclass(slots=True)
class Exl3Chunk:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None

    def rotate(self, x: torch.Tensor, suh: torch.Tensor, blocks: Blocks, out: torch.Tensor) -> None:
        """x fp16 [R, k], suh fp16 [G, M, k] -> out fp16 [G, P, k]."""
        groups, matrices, inputs = suh.shape
        self._rotations().launch(
            "rotate_chunk",
            (out.shape[1], 1, 1),
            (_threads(inputs), 1, 1),
            x,
            suh,
            blocks.pair_row,
            blocks.pair_matrix,
            out,
            inputs,
            matrices,
            groups,
            int(self._by_warp_groups(blocks)),
        )

    def gate_up(
        self,
        gate: torch.Tensor,
        up: torch.Tensor,
        down: Exl3Stack,
        blocks: Blocks,
        out: torch.Tensor,
        limit: float | None,
    ) -> None:
        """gate and up fp16 [P, k] -> the rotated input of ``down``, fp16 [P, k]."""
        pairs, width = gate.shape
        self._rotations().launch(
            "gate_up_chunk",
            (pairs, 1, 1),
            (_threads(width), 1, 1),
            gate,
            up,
            down.suh,
            blocks.pair_row,
            blocks.pair_matrix,
            out,
            width,
            float("inf") if limit is None else float(limit),
            int(self._by_warp_groups(blocks)),
        )

    def product(
        self, rotated: torch.Tensor, stack: Exl3Stack, blocks: Blocks, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """rotated fp16 [G, P, k] -> outputs, one a group (at most two), fp16 or fp32 [P, n]."""
        if blocks.pair_row is None and rotated.shape[1] >= LIBRARY_ROWS:
            self._library_product(rotated, stack, outputs)
            return
        if self._by_warp_groups(blocks):
            RoutedChunk(self.device, self.cache_dir).product(rotated, stack, blocks, outputs)
            return
        if not stack.integer:
            self._decoded().product(rotated, stack, blocks, outputs)
            return
        self._module(stack.rates).launch(
            "product_chunk",
            *tiles_of(stack, blocks),
            stack.addresses,
            stack.bits,
            rotated,
            *blocks.arguments(stack, outputs),
            int(blocks.pair_row is None),
            shared_bytes=TILE_SHARED_BYTES,
        )

    def _library_product(
        self, rotated: torch.Tensor, stack: Exl3Stack, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """Each matrix decoded once and multiplied by the library's product."""
        for group, out in enumerate(outputs):
            width = stack.outputs[group]
            matrix = torch.empty(stack.inputs, width, dtype=torch.float16, device=self.device)
            self._decoded().decode(stack, group, matrix)
            y = torch.mm(rotated[group], matrix)
            self._rotations().launch(
                "finish_chunk",
                (y.shape[0], -(-width // 2048), 1),
                (128, 1, 1),
                y,
                stack.svh[group],
                out,
                width,
                int(out.dtype == torch.float32),
            )
            if stack.offsets:  # after the last rotation: y has fp16's digits alone
                out += hadamard(stack.offsets[group], ROTATION) * stack.svh[group]

    def _by_warp_groups(self, blocks: Blocks) -> bool:
        return blocks.pair_row is not None and has_warp_groups(self.device)

    def _rotations(self) -> KernelModule:
        return kernel_module(ROTATIONS_SOURCE, self.device, self.cache_dir)

    def _decoded(self) -> DecodedChunk:
        return DecodedChunk(self.device, self.cache_dir)

    def _module(self, rates: tuple[int, int]) -> KernelModule:
        source = SOURCE.with_defines(BITS_A=rates[0], BITS_B=rates[1])
        return kernel_module(source, self.device, self.cache_dir)


def _threads(values: int) -> int:
    """Of a block that rotates so many values a row: a warp takes 1,024 of them at a time."""
    return min(8, -(-values // 1024)) * 32
