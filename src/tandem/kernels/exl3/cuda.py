"""EXL3 (MUL1) products of few rows on CUDA cards: integer matrix units add the codebook's bytes.

Alphabet: R rows, M matrices of one shape, P pairs (a row meeting a matrix), J jobs (a matrix with its pairs),
k inputs, n outputs, S splits of k.

The product is an integer, so its bits depend neither on R nor on S nor on the other rows. Activations are
rounded to 16 bits a row, finer than fp16; against the exact decode the result differs by that rounding and by
the fp16 rounding of single weights (tests: 3e-4 relative).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

_SOURCE = KernelSource(Path(__file__).parent / "csrc" / "exl3_rows.cu")
_TILES = 4
_WARPS = 8
_SHARED_LIMIT_BYTES = 47 * 1024
"""Without opting in; more activations than fit are split along k."""
PAIRS_PER_PASS = 8
MAX_PAIRS_PER_JOB = 16


@dataclass(frozen=True, slots=True)
class Exl3Stack:
    """M matrices of one shape and rate on one card."""

    trellis: torch.Tensor
    """int16 [M, k/16, n/16, 16·K], contiguous."""
    suh: torch.Tensor
    """fp16 [M, k]."""
    svh: torch.Tensor
    """fp16 [M, n]."""
    addresses: torch.Tensor
    """int64 [M] on the card: where each matrix's tiles begin."""

    @classmethod
    def of(cls, trellis: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor) -> Exl3Stack:
        step = trellis.stride(0) * trellis.element_size()
        addresses = torch.arange(trellis.shape[0], dtype=torch.int64) * step + trellis.data_ptr()
        return cls(trellis, suh, svh, addresses.to(trellis.device))

    @property
    def inputs(self) -> int:
        return self.trellis.shape[1] * 16

    @property
    def outputs(self) -> int:
        return self.trellis.shape[2] * 16

    @property
    def bits(self) -> int:
        return self.trellis.shape[3] // 16


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

    @property
    def capacity(self) -> int:
        return self.pair_row.numel()

    @property
    def most_jobs(self) -> int:
        return self.job_matrix.numel()


def dense_jobs(rows: int, device: torch.device) -> Jobs:
    """One job: every row meets matrix 0."""

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Jobs(
        ints(list(range(rows))), ints([0] * rows), ints([rows]), ints([0, rows]), ints([0]), ints([1])
    )


@dataclass(frozen=True, slots=True)
class Activations:
    """Rotated rows in two bytes a value."""

    high: torch.Tensor
    """int8 [P, k]."""
    low: torch.Tensor
    """int8 [P, k]."""
    scale: torch.Tensor
    """fp32 [P]."""
    sum: torch.Tensor
    """int32 [P], of 256·high + low."""

    @classmethod
    def empty(cls, pairs: int, inputs: int, device: torch.device) -> Activations:
        return cls(
            torch.empty(pairs, inputs, dtype=torch.int8, device=device),
            torch.empty(pairs, inputs, dtype=torch.int8, device=device),
            torch.empty(pairs, dtype=torch.float32, device=device),
            torch.empty(pairs, dtype=torch.int32, device=device),
        )


def splits_for(inputs: int, outputs: int, jobs: int, max_pairs: int, processors: int) -> int:
    """Cuts of k: enough that activations fit in shared memory, and about two waves of blocks."""
    k_tiles = inputs // 16
    rows = 2 * PAIRS_PER_PASS * (1 if max_pairs <= PAIRS_PER_PASS else 2)
    for_memory = -(-rows * (inputs + 16) // _SHARED_LIMIT_BYTES)
    blocks = outputs // (16 * _TILES) * jobs
    for_waves = min(2 * processors // max(blocks, 1), k_tiles // (2 * _WARPS))
    return max(for_memory, for_waves, 1)


@dataclass(slots=True)
class RowsKernels:
    """Launches for one card. Outputs are the caller's, of fixed addresses, so a graph can replay them."""

    device: torch.device
    cache_dir: Path | None

    def rotate(self, x: torch.Tensor, stack: Exl3Stack, jobs: Jobs, out: Activations) -> None:
        """x fp32 [R, k] -> ``out`` for every pair."""
        self._module(stack.bits, 1).launch(
            "rotate_rows",
            (jobs.capacity, 1, 1),
            (256, 1, 1),
            x,
            stack.suh,
            jobs.pair_row,
            jobs.pair_matrix,
            jobs.pair_count,
            out.high,
            out.low,
            out.scale,
            out.sum,
            np.int32(stack.inputs),
            shared_bytes=stack.inputs * 4,
        )

    def product(
        self, rows: Activations, stack: Exl3Stack, jobs: Jobs, partial: torch.Tensor, max_pairs: int
    ) -> None:
        """Integer sums: ``partial`` int32 [S, P, 2, n]. ``max_pairs``: most pairs a job can have, ≤ 16."""
        passes = 1 if max_pairs <= PAIRS_PER_PASS else 2
        splits = partial.shape[0]
        per_split = -(-(stack.inputs // 16) // splits)
        activations = 2 * passes * PAIRS_PER_PASS * (per_split * 16 + 16)
        sums = 2 * passes * PAIRS_PER_PASS * _TILES * 16 * 4
        self._module(stack.bits, passes).launch(
            "product_rows",
            (stack.outputs // (16 * _TILES), splits, jobs.most_jobs),
            (_WARPS * 32, 1, 1),
            stack.addresses,
            rows.high,
            rows.low,
            jobs.job_start,
            jobs.job_matrix,
            jobs.job_count,
            partial,
            np.int32(stack.inputs),
            np.int32(stack.outputs),
            np.int32(jobs.capacity),
            shared_bytes=max(activations, sums),
        )

    def finish(
        self, partial: torch.Tensor, rows: Activations, stack: Exl3Stack, jobs: Jobs, y: torch.Tensor
    ) -> None:
        """``y`` fp32 [P, n]: rotated back and scaled."""
        blocks = stack.outputs // 128
        warps = min(blocks, 4)
        self._module(stack.bits, 1).launch(
            "finish_rows",
            (jobs.capacity, -(-blocks // warps), 1),
            (32 * warps, 1, 1),
            partial,
            stack.svh,
            jobs.pair_matrix,
            jobs.pair_count,
            rows.scale,
            rows.sum,
            y,
            np.int32(stack.outputs),
            np.int32(partial.shape[0]),
            np.int32(jobs.capacity),
        )

    def _module(self, bits: int, passes: int) -> KernelModule:
        source = _SOURCE.with_defines(BITS=bits, TILES=_TILES, WARPS=_WARPS, PASSES=passes)
        return kernel_module(source, self.device, self.cache_dir)
