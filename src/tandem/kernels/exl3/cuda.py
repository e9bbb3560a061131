"""EXL3 (MUL1) products of few rows on CUDA cards: integer matrix units add the codebook's bytes.

Alphabet: R rows, G groups, M matrices a group, P pairs (a row meeting a matrix), J jobs (a matrix with its
pairs), k inputs, n outputs, S splits of k.

The product is an integer, so its bits depend neither on R nor on S nor on the other rows. Activations are
rounded to 16 bits a row, finer than fp16; against the exact decode the result differs by that rounding and by
the fp16 rounding of single weights (tests: 3e-4 relative).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_rows.cu")
ROTATION = 128
ROW_BUCKETS = (1, 2, 4, 8, 16)
_SHARED_LIMIT_BYTES = 68 * 1024
"""Three blocks a processor; more activations than fit are split along k."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a product is cut into blocks; changes its speed, not its bits."""

    tiles: int = 8
    """Tiles of 16 outputs that a warp works on side by side."""
    warps: int = 4
    """They share a block's outputs and divide k."""
    depth: int = 2
    """Loads in flight, in steps of a warp."""
    blocks: int = 2
    """Blocks a processor must be able to hold."""


DEFAULT_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Exl3Matrix:
    """One quantized matrix on the card."""

    trellis: torch.Tensor
    """int16 [k/16, n/16, 16·K]."""
    suh: torch.Tensor
    """fp16 [k]."""
    svh: torch.Tensor
    """fp16 [n]."""


@dataclass(frozen=True, slots=True)
class Exl3Stack:
    """G groups of M matrices that one launch multiplies: one shape a group, at most two rates."""

    trellises: tuple[torch.Tensor, ...]
    """Keeps the tiles alive."""
    addresses: torch.Tensor
    """int64 [G·M]."""
    bits: torch.Tensor
    """int32 [G·M]."""
    outputs_of: torch.Tensor
    """int32 [G·M]."""
    suh: torch.Tensor
    """fp16 [G, M, k]."""
    svh: tuple[torch.Tensor, ...]
    """fp16 [M, n] a group, contiguous one after the other."""
    rates: tuple[int, int]
    inputs: int
    outputs: tuple[int, ...]
    matrices: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[Exl3Matrix]]) -> Exl3Stack:
        """``groups[g][m]``. Raises ValueError for more than two rates or shapes that differ in a group."""
        every = [matrix for group in groups for matrix in group]
        device = every[0].trellis.device
        bits = [matrix.trellis.shape[2] // 16 for matrix in every]
        rates = sorted(set(bits))
        outputs = tuple(group[0].svh.numel() for group in groups)
        if len(rates) > 2 or any(
            m.svh.numel() != outputs[g] for g, group in enumerate(groups) for m in group
        ):
            raise ValueError(f"one launch takes two rates and equal shapes, not rates {rates}")
        svh = torch.cat([matrix.svh for matrix in every])
        parts = torch.split(svh, [n * len(groups[0]) for n in outputs])
        return cls(
            trellises=tuple(matrix.trellis for matrix in every),
            addresses=torch.tensor([m.trellis.data_ptr() for m in every], dtype=torch.int64, device=device),
            bits=torch.tensor(bits, dtype=torch.int32, device=device),
            outputs_of=torch.tensor([m.svh.numel() for m in every], dtype=torch.int32, device=device),
            suh=torch.stack([m.suh for m in every]).view(len(groups), len(groups[0]), -1),
            svh=tuple(part.view(-1, n) for part, n in zip(parts, outputs, strict=True)),
            rates=(rates[0], rates[-1]),
            inputs=every[0].suh.numel(),
            outputs=outputs,
            matrices=len(groups[0]),
        )

    @property
    def groups(self) -> int:
        return len(self.outputs)

    @property
    def widest(self) -> int:
        return max(self.outputs)

    @property
    def nbytes(self) -> int:
        tensors = (*self.trellises, self.addresses, self.bits, self.outputs_of, self.suh, *self.svh)
        return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Which pairs meet which matrices; int32 on the card, so that routing never visits the host."""

    pair_row: torch.Tensor
    """[P]."""
    pair_matrix: torch.Tensor
    """[P], ascending."""
    pair_count: torch.Tensor
    """[1]."""
    job_start: torch.Tensor
    """[J + 1]."""
    job_matrix: torch.Tensor
    """[J]."""
    job_count: torch.Tensor
    """[1]."""
    fixed: bool = False
    """Written long before any kernel of the step."""

    @property
    def capacity(self) -> int:
        return self.pair_row.numel()

    @property
    def most_jobs(self) -> int:
        return self.job_matrix.numel()

    @classmethod
    def dense(cls, rows: int, device: torch.device) -> Jobs:
        """One job: every row meets matrix 0."""

        def ints(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            ints(list(range(rows))),
            ints([0] * rows),
            ints([rows]),
            ints([0, rows]),
            ints([0]),
            ints([1]),
            True,
        )

    @classmethod
    def empty(cls, pairs: int, jobs: int, device: torch.device) -> Jobs:
        """To be filled on the card."""

        def ints(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int32, device=device)

        return cls(ints(pairs), ints(pairs), ints(1), ints(jobs + 1), ints(jobs), ints(1))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rotated rows for a product."""

    rotated: torch.Tensor
    """fp32 [G·P, k]."""
    peaks: torch.Tensor
    """fp32 [G·P, k/128]: the largest magnitude of each rotated block."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a product leaves: integers, to be rotated back by whoever reads them."""

    values: torch.Tensor
    """int32 [S, G·P, 2, pitch]."""
    sums: torch.Tensor
    """int32 [S, G·P]."""
    scale: torch.Tensor
    """fp32 [G·P]."""

    @property
    def splits(self) -> int:
        return self.values.shape[0]

    @property
    def pitch(self) -> int:
        return self.values.shape[3]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that the products of a step use one after the other."""

    rotated: torch.Tensor
    peaks: torch.Tensor
    values: torch.Tensor
    sums: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def empty(cls, row_values: int, sum_values: int, pairs: int, device: torch.device) -> Scratch:
        """row_values: most G·P·k; sum_values: most S·G·P·n; pairs: most S·G·P."""
        return cls(
            torch.empty(row_values, device=device),
            torch.empty(row_values // ROTATION, device=device),
            torch.empty(2 * sum_values, dtype=torch.int32, device=device),
            torch.empty(pairs, dtype=torch.int32, device=device),
            torch.empty(pairs, device=device),
        )

    def inputs(self, pairs: int, inputs: int) -> Inputs:
        blocks = inputs // ROTATION
        return Inputs(
            self.rotated[: pairs * inputs].view(pairs, inputs),
            self.peaks[: pairs * blocks].view(pairs, blocks),
        )

    def outputs(self, splits: int, pairs: int, pitch: int) -> Sums:
        return Sums(
            self.values[: splits * pairs * 2 * pitch].view(splits, pairs, 2, pitch),
            self.sums[: splits * pairs].view(splits, pairs),
            self.scale[:pairs],
        )


def row_bucket(rows: int) -> int:
    """The smallest compiled row count that holds ``rows``."""
    return next(bucket for bucket in ROW_BUCKETS if bucket >= rows)


def splits_for(
    inputs: int, outputs: int, jobs: int, most_rows: int, processors: int, shape: Shape = DEFAULT_SHAPE
) -> int:
    """Cuts of k: enough that activations fit in shared memory, and blocks for every processor.

    Measured on an H200: three blocks a processor are best where one wave does it; where more are needed
    anyway, nine, so that the last ones to end leave little idle.
    """
    k_tiles = inputs // 16
    for_memory = -(-2 * row_bucket(most_rows) * (inputs + 16) // _SHARED_LIMIT_BYTES)
    blocks = -(-outputs // (16 * shape.tiles)) * jobs
    wanted = 3 * processors // blocks if 2 * blocks <= 3 * processors else min(9 * processors // blocks, 4)
    return max(for_memory, min(wanted, k_tiles // (4 * shape.warps)), 1)


@dataclass(slots=True)
class Exl3Rows:
    """Launches for one card. Outputs are the caller's, of fixed addresses, so a graph can replay them."""

    device: torch.device
    cache_dir: Path | None
    processors: int
    shape: Shape = DEFAULT_SHAPE

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
        return splits_for(
            stack.inputs,
            stack.widest,
            stack.groups * jobs.most_jobs,
            most_rows,
            self.processors,
            self.shape,
        )

    def product(self, rows: Inputs, stack: Exl3Stack, jobs: Jobs, out: Sums, most_rows: int) -> None:
        """Integer sums of every pair. ``most_rows``: most pairs a job can have, ≤ 16."""
        bucket = row_bucket(most_rows)
        per_split = -(-(stack.inputs // 16) // out.splits)
        shared = max(2 * bucket * (per_split * 16 + 16), 2 * bucket * self.shape.tiles * 16 * 4)
        self._module(stack.rates, bucket).launch(
            "product_rows",
            (-(-stack.widest // (16 * self.shape.tiles)), out.splits, stack.groups * jobs.most_jobs),
            (self.shape.warps * 32, 1, 1),
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
            int(jobs.fixed),
            shared_bytes=shared,
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
        """Gate (group 0) and up (group 1) -> the rotated input of ``down``; clamped SwiGLU between."""
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

    def _module(self, rates: tuple[int, int], rows: int) -> KernelModule:
        source = SOURCE.with_defines(
            BITS_A=rates[0],
            BITS_B=rates[1],
            ROWS=rows,
            TILES=self.shape.tiles,
            WARPS=self.shape.warps,
            DEPTH=self.shape.depth,
            BLOCKS=self.shape.blocks,
        )
        return kernel_module(source, self.device, self.cache_dir)
