"""The rows of a prefill chunk as the EXL3 products on a CUDA card take them: blocks of one matrix each.

Alphabet: R rows, P pairs (rows sorted by matrix), B blocks of them, G groups, M matrices a group, n outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.kernels.exl3.operands import Exl3Stack

BLOCK_ROWS = 128
TILE_OUTPUTS = 128
TILE_SHARED_BYTES = 64 * 132 * 4
"""The output's half tile; the input's four stages are smaller."""

Dimensions = tuple[int, int, int]


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

    def arguments(
        self, stack: Exl3Stack, outputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor | int, ...]:
        """What every product is told of blocks, scales, outputs (fp16 or fp32 [P, n]) and sizes."""
        first, last = outputs[0], outputs[-1]
        return (
            self.matrix,
            self.start,
            self.end,
            self.count,
            stack.svh[0],
            stack.svh[-1],
            first,
            last,
            stack.inputs,
            stack.outputs[0],
            stack.outputs[-1],
            stack.matrices,
            self.pairs,
            int(first.dtype == torch.float32),
        )


def tiles_of(stack: Exl3Stack, blocks: Blocks) -> tuple[Dimensions, Dimensions]:
    """Grid and threads of a product by warps: blocks of rows times 128 outputs.

    Neighbours in time share rows' matrix where all rows have one, else a block's rows.
    """
    columns, rows = -(-stack.widest // TILE_OUTPUTS), blocks.matrix.numel()
    plane = (rows, columns) if blocks.pair_row is None else (columns, rows)
    return (*plane, stack.groups), (128, 1, 1)
