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

from tandem.kernels.exl3.decoded import DecodedChunk
from tandem.kernels.exl3.operands import Exl3Stack
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.exl3.routed import RoutedChunk, has_warp_groups
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_chunk.cu")
ROTATIONS_SOURCE = KernelSource(Path(__file__).parent / "csrc" / "chunk_rotations.cu")
BLOCK_ROWS = 128
LIBRARY_ROWS = 1024
"""From so many rows on, one matrix is decoded once for all of them."""
_BLOCK_OUTPUTS = 128
_SHARED_BYTES = 64 * 132 * 4
"""The output's half tile; the input's four stages are smaller."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs cut into blocks of at most 128 rows of one matrix; int32 on the card."""

    pairs: int
    pair_row: torch.Tensor | None
    """[P]; -1: nobody, so that every matrix's pairs begin at a multiple of eight. None: the row itself."""
    pair_matrix: torch.Tensor | None
    """[P], ascending; None: matrix 0."""
    matrix: torch.Tensor
    """[B]."""
    start: torch.Tensor
    """[B]."""
    end: torch.Tensor
    """[B]."""
    count: torch.Tensor
    """[1]: how many of the B are in use."""

    @classmethod
    def dense(cls, rows: int, device: torch.device) -> Blocks:
        """Every row meets matrix 0."""
        start = torch.arange(0, rows, BLOCK_ROWS, dtype=torch.int32, device=device)
        end = torch.clamp(start + BLOCK_ROWS, max=rows)
        count = torch.full((1,), start.numel(), dtype=torch.int32, device=device)
        return cls(rows, None, None, torch.zeros_like(start), start, end, count)

    @staticmethod
    def most(pairs: int, matrices: int) -> int:
        """Blocks that so many pairs can need."""
        return pairs // BLOCK_ROWS + matrices

    @staticmethod
    def room(pairs: int, matrices: int) -> int:
        """So many pairs and the holes between them, a multiple of eight."""
        return -(-(pairs + 7 * matrices) // 8) * 8

    @classmethod
    def routed(cls, experts: torch.Tensor, matrices: int) -> tuple[Blocks, torch.Tensor]:
        """experts int64 [R, choices], ascending in a row -> blocks, and row_pair int32 [R, choices]. In plain
        torch; ``moe.chunk`` makes the same from a router's logits.
        """
        rows, choices = experts.shape
        flat, device = experts.flatten(), experts.device
        pairs = cls.room(flat.numel(), matrices)
        counts = torch.zeros(matrices, dtype=torch.int64, device=device)
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        room = (counts + 7) // 8 * 8
        first = room.cumsum(0) - room
        order = torch.argsort(flat, stable=True)
        found = flat[order]
        pair = torch.arange(flat.numel(), device=device) + (first - counts.cumsum(0) + counts)[found]
        row_pair = torch.empty_like(order).scatter_(0, order, pair)
        pair_row = torch.full((pairs,), -1, device=device).scatter_(0, pair, order // choices)
        pair_matrix = torch.zeros(pairs, dtype=torch.int64, device=device).scatter_(0, pair, found)
        blocks_of = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
        each = (counts + blocks_of - 1) // blocks_of.clamp(min=1)
        each = (each + 7) // 8 * 8  # a matrix's blocks are of one size
        last_block, number = (
            blocks_of.cumsum(0),
            torch.arange(cls.most(flat.numel(), matrices), device=device),
        )
        matrix = torch.searchsorted(last_block, number, right=True).clamp_(max=matrices - 1)
        start = first[matrix] + (number - (last_block - blocks_of)[matrix]) * each[matrix]
        end = torch.minimum(start + each[matrix], (first + counts)[matrix])
        made = cls(
            pairs,
            pair_row.int(),
            pair_matrix.int(),
            matrix.int(),
            start.int(),
            end.int(),
            last_block[-1:].int(),
        )
        return made, row_pair.view(rows, choices).int()


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
        first, last = outputs[0], outputs[-1]
        columns, rows = -(-stack.widest // _BLOCK_OUTPUTS), blocks.matrix.numel()
        rows_first = blocks.pair_row is None
        self._module(stack.rates).launch(
            "product_chunk",
            (rows, columns, stack.groups) if rows_first else (columns, rows, stack.groups),
            (128, 1, 1),
            stack.addresses,
            stack.bits,
            rotated,
            blocks.matrix,
            blocks.start,
            blocks.end,
            blocks.count,
            stack.svh[0],
            stack.svh[-1],
            first,
            last,
            stack.inputs,
            stack.outputs[0],
            stack.outputs[-1],
            stack.matrices,
            rotated.shape[1],
            int(first.dtype == torch.float32),
            int(rows_first),
            shared_bytes=_SHARED_BYTES,
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
