"""EXL3 products of a prefill chunk on a CUDA card: fp16 rows, weights decoded inside the product.

Alphabet: P pairs (rows sorted by matrix), G groups, M matrices a group, k inputs, n outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.decoded import DecodedChunk
from tandem.kernels.exl3.operands import Exl3Stack
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_chunk.cu")
BLOCK_ROWS = 128
LIBRARY_ROWS = 1024
"""From so many rows on, one matrix is decoded once for all of them."""
_BLOCK_OUTPUTS = 128
_SHARED_BYTES = 64 * 132 * 4
"""The output's half tile; the input's four stages are smaller."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs cut into blocks of at most 128 rows of one matrix; int32 on the card."""

    pair_row: torch.Tensor | None
    """[P]; None: the row itself."""
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
        return cls(None, None, torch.zeros_like(start), start, end, count)

    @classmethod
    def routed(cls, experts: torch.Tensor, matrices: int) -> tuple[Blocks, torch.Tensor]:
        """experts int64 [R, choices], without asking the host; also row_pair int32 [R, choices]."""
        rows, choices = experts.shape
        flat = experts.flatten()
        order = torch.argsort(flat, stable=True)
        row_pair = torch.empty_like(order)
        row_pair[order] = torch.arange(flat.numel(), device=flat.device)
        counts = torch.zeros(matrices, dtype=torch.int64, device=flat.device)
        counts.scatter_add_(0, flat, torch.ones_like(flat))
        blocks_of = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
        last_block, last_pair = blocks_of.cumsum(0), counts.cumsum(0)
        most = flat.numel() // BLOCK_ROWS + matrices
        number = torch.arange(most, device=flat.device)
        matrix = torch.searchsorted(last_block, number, right=True).clamp_(max=matrices - 1)
        within = number - (last_block - blocks_of)[matrix]
        start = (last_pair - counts)[matrix] + within * BLOCK_ROWS
        end = torch.minimum(start + BLOCK_ROWS, last_pair[matrix])
        made = cls(
            (order // choices).int(),
            flat[order].int(),
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
        self._module((3, 3)).launch(
            "rotate_chunk",
            (out.shape[1], -(-inputs // 512), groups),
            (128, 1, 1),
            x,
            suh,
            blocks.pair_row,
            blocks.pair_matrix,
            out,
            inputs,
            matrices,
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
        self._module((3, 3)).launch(
            "gate_up_chunk",
            (pairs, -(-width // 512), 1),
            (128, 1, 1),
            gate,
            up,
            down.suh,
            blocks.pair_matrix,
            out,
            width,
            float("inf") if limit is None else float(limit),
        )

    def product(
        self, rotated: torch.Tensor, stack: Exl3Stack, blocks: Blocks, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """rotated fp16 [G, P, k] -> outputs, one a group (at most two), fp16 or fp32 [P, n]."""
        if blocks.pair_row is None and rotated.shape[1] >= LIBRARY_ROWS:
            self._library_product(rotated, stack, outputs)
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
            self._module((3, 3)).launch(
                "finish_chunk",
                (y.shape[0], -(-width // 512), 1),
                (128, 1, 1),
                y,
                stack.svh[group],
                out,
                width,
                int(out.dtype == torch.float32),
            )
            if stack.offsets:  # after the last rotation: y has fp16's digits alone
                out += hadamard(stack.offsets[group], ROTATION) * stack.svh[group]

    def _decoded(self) -> DecodedChunk:
        return DecodedChunk(self.device, self.cache_dir)

    def _module(self, rates: tuple[int, int]) -> KernelModule:
        source = SOURCE.with_defines(BITS_A=rates[0], BITS_B=rates[1])
        return kernel_module(source, self.device, self.cache_dir)
