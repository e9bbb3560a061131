"""EXL3 products of few rows on CUDA cards: integer matrix units add the bytes of the MUL1 codebook.

Alphabet: R rows, G groups, M matrices a group, P pairs (a row meeting a matrix), J jobs (a matrix with its
pairs), k inputs, n outputs, S splits of k.

The product is an integer, so its bits depend neither on R nor on S nor on the other rows. Activations are
rounded to 16 bits a row, finer than fp16; against the exact decode the result differs by that rounding and by
the fp16 rounding of single weights (tests: 3e-4 relative). Stacks of another codebook, of half rates or
of more than two rates go to ``decoded.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem.kernels.exl3.decoded import DecodedRows, splits_of
from tandem.kernels.exl3.operands import NO_ERRAND, Beside, Exl3Stack, Gated, Inputs, Jobs, Sums
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_rows.cu")
ROW_BUCKETS = (1, 2, 4, 8, 16)
PASS_ROWS = 4
"""Rows that the matrix unit takes at once: a job of up to twice as many costs as much as two jobs."""
STEP_TILES = 4
"""K-tiles that a warp works on at once (integer.cuh)."""
_ACTIVATIONS_LIMIT_BYTES = 40 * 1024
"""Of a block, several of which share a processor; more activations than fit are split along k."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a product is cut into blocks; changes its speed, not its bits."""

    tiles: int = 4
    """Tiles of 16 outputs that a warp works on side by side, 4 or 8."""
    warps: int = 8
    columns: int = 2
    """Warps side by side in the outputs, which share activations; the others divide k."""
    depth: int = 2
    """Steps of a warp whose tiles are on their way or at hand."""
    blocks: int = 3
    """Blocks a processor must be able to hold."""

    @property
    def k_warps(self) -> int:
        return self.warps // self.columns

    @property
    def outputs(self) -> int:
        """Of a block."""
        return 16 * self.tiles * self.columns

    def k_tiles(self, inputs: int, splits: int) -> int:
        """K-tiles of a block that has room for the largest share of ``splits``."""
        per_split = -(-inputs // (16 * STEP_TILES * splits))
        return -(-per_split // self.k_warps) * self.k_warps * STEP_TILES


SMALL_BLOCKS = Shape(warps=4, blocks=6)
"""Where there are few rows or outputs: more of them, so that the last ones to end leave less idle."""


def row_bucket(rows: int) -> int:
    """The smallest compiled row count that holds ``rows``."""
    return next(bucket for bucket in ROW_BUCKETS if bucket >= rows)


def shape_for(outputs: int, jobs: int, bucket: int, processors: int) -> Shape:
    """Measured on an H200 (benchmarks/exl3_rows.py)."""
    few_outputs = 2 * -(-outputs // ROTATION) * jobs <= processors
    shape = SMALL_BLOCKS if few_outputs or (bucket <= 2 < jobs) else Shape()
    return shape if bucket < 16 else replace(shape, blocks=(shape.blocks + 1) // 2)


def splits_for(inputs: int, outputs: int, jobs: int, most_rows: int, processors: int, shape: Shape) -> int:
    """Cuts of k: enough that activations fit in shared memory; of those, what should take least time.

    Measured on an H200: blocks that fill the card once, or less, take as long as one of them; more take
    their share and three tenths of a wave for the last ones to end. To begin and end costs a block as much
    as 205 of its inputs.
    """
    for_memory = max(1, -(-2 * row_bucket(most_rows) * (inputs + 64) // _ACTIVATIONS_LIMIT_BYTES))
    at_once, blocks = shape.blocks * processors, -(-outputs // shape.outputs) * jobs

    def time(splits: int) -> float:
        waves = blocks * splits / at_once
        return (waves + 0.3 if waves > 1 else 1) * (inputs / splits + 205)

    most = max(for_memory, min(inputs // (16 * STEP_TILES * shape.k_warps), 16))
    return min(range(for_memory, most + 1), key=time)


@dataclass(slots=True)
class Exl3Rows:
    """Launches for one card. Outputs are the caller's, of fixed addresses, so a graph can replay them."""

    device: torch.device
    cache_dir: Path | None
    processors: int
    shape: Shape | None = None
    """None: the measured one."""

    def rotate(self, x: torch.Tensor, stack: Exl3Stack, jobs: Jobs, out: Inputs) -> None:
        """x fp32 [R, k] -> ``out`` for every pair of every group."""
        blocks = stack.inputs // ROTATION
        warps = min(blocks, 4)
        self._module(stack.rates, 1).launch(
            "rotate_pairs",
            (jobs.capacity, -(-blocks // warps), stack.groups),
            (32 * warps, 1, 1),
            x,
            stack.suh,
            jobs.pair_row,
            jobs.pair_matrix,
            jobs.pair_count,
            out.rotated,
            out.peaks,
            stack.inputs,
            stack.matrices,
        )

    def splits(self, stack: Exl3Stack, jobs: Jobs, most_rows: int) -> int:
        if not stack.integer:
            return splits_of(stack)
        return splits_for(
            stack.inputs,
            stack.widest,
            stack.groups * jobs.most_jobs,
            most_rows,
            self.processors,
            self._shape(stack, jobs, row_bucket(most_rows)),
        )

    def product(
        self,
        rows: Inputs,
        stack: Exl3Stack,
        jobs: Jobs,
        out: Sums,
        most_rows: int,
        beside: Beside | None = None,
        gated: Gated | None = None,
        *,
        awaits: torch.Tensor | None = None,
    ) -> None:
        """Sums of every pair. ``most_rows``: most pairs a job can have, ≤ 16.

        ``beside``, ``gated`` and ``awaits`` need an integer stack. ``awaits``: ``ready`` of a gated product
        of the same jobs in the launch before this one; a job begins as soon as its own input is there.
        """
        bucket = row_bucket(most_rows)
        if not stack.integer:
            assert beside is None
            assert gated is None
            assert awaits is None
            DecodedRows(self.device, self.cache_dir).product(rows, stack, jobs, out, bucket)
            return
        shape = self._shape(stack, jobs, bucket)
        activations = 2 * bucket * (16 * shape.k_tiles(stack.inputs, out.splits) + 64)
        rings = 4 * shape.warps * shape.depth * STEP_TILES * (shape.tiles * 8 * stack.rates[1] + 24)
        totals = 4 * 2 * bucket * shape.outputs
        errand = beside.errand if beside else None
        small = beside.weight if beside else None
        dense_outputs, dense_inputs = (0, 0) if small is None else small.shape
        beside_blocks = -(-dense_outputs // (shape.warps * out.splits)) + int(errand is not None)
        blocks = -(-stack.widest // shape.outputs)
        self._module(stack.rates, bucket, shape).launch(
            "product_rows",
            (beside_blocks + blocks, out.splits, stack.groups * jobs.most_jobs),
            (shape.warps * 32, 1, 1),
            stack.addresses,
            stack.bits,
            stack.outputs_of,
            rows.rotated,
            rows.peaks,
            jobs.job_start,
            jobs.job_matrix,
            jobs.job_count,
            out.values,
            out.sums,
            out.scale,
            stack.inputs,
            out.pitch,
            stack.matrices,
            jobs.capacity,
            stack.groups,
            int(jobs.fixed or awaits is not None),
            beside_blocks,
            small,
            beside.x if beside else None,
            beside.y if beside else None,
            dense_outputs,
            dense_inputs,
            most_rows,
            *(errand.arguments() if errand else NO_ERRAND),
            stack.svh[0] if gated else None,
            gated.down.suh if gated else None,
            gated.out.rotated if gated else None,
            gated.out.peaks if gated else None,
            gated.arrivals if gated else None,
            float("inf") if gated is None or gated.limit is None else float(gated.limit),
            gated.ready if gated else None,
            awaits,
            shared_bytes=totals + activations + rings,
        )

    def finish(self, sums: Sums, stack: Exl3Stack, jobs: Jobs, y: torch.Tensor, group: int = 0) -> None:
        """``y`` fp32 [P, n]: one group's pairs, rotated back and scaled."""
        outputs = stack.outputs[group]
        blocks = outputs // ROTATION
        warps = min(blocks, 4)
        self._module(stack.rates, 1).launch(
            "finish_rows",
            (jobs.capacity, -(-blocks // warps), 1),
            (32 * warps, 1, 1),
            sums.values,
            sums.sums,
            sums.scale,
            stack.svh[group],
            jobs.pair_matrix,
            jobs.pair_count,
            y,
            outputs,
            sums.pitch,
            sums.splits,
            stack.groups * jobs.capacity,
            group * jobs.capacity,
        )

    def finish_gate_up(
        self, sums: Sums, gate_up: Exl3Stack, down: Exl3Stack, jobs: Jobs, out: Inputs, limit: float | None
    ) -> None:
        """Gate (group 0) and up (group 1) -> the rotated input of ``down``; clamped SwiGLU between. For
        what a gated product cannot do.
        """
        width = down.inputs
        blocks = width // ROTATION
        warps = min(blocks, 2)
        self._module(gate_up.rates, 1).launch(
            "finish_gate_up",
            (jobs.capacity, -(-blocks // warps), 1),
            (32 * warps, 1, 1),
            sums.values,
            sums.sums,
            sums.scale,
            gate_up.svh[0],
            down.suh,
            jobs.pair_matrix,
            jobs.pair_count,
            out.rotated,
            out.peaks,
            width,
            sums.pitch,
            gate_up.matrices,
            sums.splits,
            float("inf") if limit is None else float(limit),
        )

    def _shape(self, stack: Exl3Stack, jobs: Jobs, bucket: int) -> Shape:
        return self.shape or shape_for(stack.widest, stack.groups * jobs.most_jobs, bucket, self.processors)

    def _module(self, rates: tuple[int, int], rows: int, shape: Shape | None = None) -> KernelModule:
        shape = shape or Shape()
        source = SOURCE.with_defines(
            BITS_A=rates[0],
            BITS_B=rates[1],
            ROWS=rows,
            TILES=shape.tiles,
            WARPS=shape.warps,
            COLUMN_WARPS=shape.columns,
            DEPTH=shape.depth,
            BLOCKS=shape.blocks,
        )
        return kernel_module(source, self.device, self.cache_dir)
