"""Expert routing of a prefill chunk on a CUDA card: logits to blocks of pairs, without the host.

Alphabet: R rows, E routed experts, M matrices (E and the shared expert), P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.nvrtc import KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "route_chunk.cu")


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """What rows meet."""

    blocks: Blocks
    row_pair: torch.Tensor
    """int32 [R, choices], ascending by expert."""
    row_weight: torch.Tensor
    """fp32 [R, choices]."""


@dataclass(slots=True)
class ChunkRouter:
    """Launches for one card. ``shared``: 1 if a shared expert follows the routed ones as matrix E."""

    device: torch.device
    cache_dir: Path | None
    top_k: int
    shared: int
    normalize: bool
    scaling: float

    def route(self, logits: torch.Tensor, correction_bias: torch.Tensor) -> RoutedRows:
        """logits fp32 [R, E], correction_bias fp32 [E]; ``Blocks.routed`` says how pairs are arranged."""
        rows, experts = logits.shape
        matrices, choices = experts + self.shared, self.top_k + self.shared
        blocks, pairs = Blocks.most(rows * choices, matrices), Blocks.room(rows * choices, matrices)

        def ints(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=self.device)

        made = Blocks(pairs, ints(pairs), ints(pairs), ints(blocks), ints(blocks), ints(blocks), ints(1))
        row_expert, row_pair, first_pair = ints(rows, choices), ints(rows, choices), ints(matrices)
        row_weight = torch.empty(rows, choices, device=self.device)
        members = torch.zeros(matrices, -(-rows // 32), dtype=torch.int32, device=self.device)
        source = SOURCE.with_defines(LANE_EXPERTS=-(-experts // 32))
        module = kernel_module(source, self.device, self.cache_dir)
        module.launch(
            "choose_chunk",
            (-(-rows // 8), 1, 1),
            (256, 1, 1),
            logits,
            correction_bias,
            row_expert,
            row_weight,
            members,
            rows,
            experts,
            self.top_k,
            self.shared,
            int(self.normalize),
            float(self.scaling),
        )
        module.launch(
            "blocks_chunk",
            (1, 1, 1),
            (1024, 1, 1),
            members,
            first_pair,
            made.matrix,
            made.start,
            made.end,
            made.count,
            made.pair_row,
            rows,
            matrices,
            pairs,
        )
        module.launch(
            "place_chunk",
            (-(-rows // 8), 1, 1),
            (256, 1, 1),
            row_expert,
            members,
            first_pair,
            made.pair_row,
            made.pair_matrix,
            row_pair,
            rows,
            choices,
        )
        return RoutedRows(made, row_pair, row_weight)
