"""EXL3 products of any codebook and rate on a CUDA card: weights become fp16 in registers, sums are fp32.

Alphabet: R rows, G groups, M matrices a group, P pairs, k inputs, n outputs, S splits of k.

For what the integer products of ``cuda.py`` cannot do: 3INST, MCG, half rates, more than two rates side by
side, biases. A float sum depends on its order, so everything that decides the order (how k is split, how many
warps share a block) follows from the stack alone, never from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.blocks import TILE_OUTPUTS, TILE_SHARED_BYTES, Blocks, tiles_of
from tandem.kernels.exl3.operands import PLAIN, Exl3Stack, Form, Inputs, Jobs, Sums
from tandem.kernels.exl3.reference import CODEBOOKS
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

ROWS_SOURCE = KernelSource(Path(__file__).parent / "csrc" / "decoded_rows.cu")
CHUNK_SOURCE = KernelSource(Path(__file__).parent / "csrc" / "decoded_chunk.cu")
TILES = 8
"""Tiles of 16 outputs that a warp works on side by side."""
WARPS = 4
_MOST_SPLIT_TILES = 64
"""16 rows of so many k-tiles fill a third of a processor's shared memory."""
_LEAST_SPLIT_TILES = 16
_WANTED_BLOCKS = 264
"""Of the smallest launch: two for each processor of an H200."""
_USUAL_EXPERTS = 8
_CODEBOOKS = (*CODEBOOKS, PLAIN)
"""By their number in decoded.cuh."""


def forms_macro(forms: tuple[Form, ...]) -> str:
    """The forms of a stack as the sources expect them: number, codebook, half bits."""
    return " ".join(
        f"F({number},{_CODEBOOKS.index(form.codebook)},{int(2 * form.bits)})"
        for number, form in enumerate(forms)
    )


def splits_of(stack: Exl3Stack) -> int:
    """Cuts of k; a function of the stack's shape alone."""
    k_tiles, experts = stack.inputs // 16, min(stack.matrices, _USUAL_EXPERTS)
    blocks = -(-stack.widest // (16 * TILES)) * stack.groups * experts
    tiles = _MOST_SPLIT_TILES
    while tiles > _LEAST_SPLIT_TILES and blocks * -(-k_tiles // tiles) < _WANTED_BLOCKS:
        tiles //= 2
    return -(-k_tiles // tiles)


@dataclass(slots=True)
class DecodedRows:
    """The product of few rows on one card."""

    device: torch.device
    cache_dir: Path | None

    def product(self, rows: Inputs, stack: Exl3Stack, jobs: Jobs, out: Sums, bucket: int) -> None:
        """fp32 sums of every pair in ``splits_of`` splits. ``bucket``: most pairs of a job, a row bucket."""
        assert out.splits == splits_of(stack), "the order of the sums would be another"
        per_split = -(-(stack.inputs // 16) // out.splits)
        source = ROWS_SOURCE.with_defines(
            FORMS=forms_macro(stack.forms),
            ROWS=bucket,
            TILES=TILES,
            WARPS=WARPS,
            DEPTH=1 if any(form.codebook == PLAIN for form in stack.forms) else 2,
            BLOCKS=3 if bucket <= 8 else 2,
        )
        kernel_module(source, self.device, self.cache_dir).launch(
            "decoded_rows",
            (-(-stack.widest // (16 * TILES)), out.splits, stack.groups * jobs.most_jobs),
            (32 * WARPS, 1, 1),
            stack.addresses,
            stack.form_of,
            stack.outputs_of,
            stack.offset_addresses,
            rows.rotated,
            rows.peaks,
            jobs.job_start,
            jobs.job_matrix,
            jobs.job_count,
            out.values,
            out.scale,
            stack.inputs,
            out.pitch,
            stack.matrices,
            jobs.capacity,
            stack.groups,
            int(jobs.fixed),
            shared_bytes=max(4 * bucket * (per_split * 16 + 8), 4 * WARPS * bucket * TILES * 16),
        )


@dataclass(slots=True)
class DecodedChunk:
    """Products of a chunk's rows on one card."""

    device: torch.device
    cache_dir: Path | None

    def product(
        self, rotated: torch.Tensor, stack: Exl3Stack, blocks: Blocks, outputs: tuple[torch.Tensor, ...]
    ) -> None:
        """rotated fp16 [G, P, k] -> outputs, one a group (at most two), fp16 or fp32 [P, n]."""
        self._module(stack).launch(
            "decoded_chunk",
            *tiles_of(stack, blocks),
            stack.addresses,
            stack.form_of,
            stack.offset_addresses,
            rotated,
            *blocks.arguments(stack, outputs),
            int(blocks.pair_row is None),
            shared_bytes=TILE_SHARED_BYTES,
        )

    def decode(self, stack: Exl3Stack, matrix: int, out: torch.Tensor) -> None:
        """Matrix ``matrix`` (of G·M) between its rotations -> out fp16 [k, n], the format's own bits."""
        inputs, outputs = out.shape
        self._module(stack).launch(
            "decode_matrix",
            (outputs // TILE_OUTPUTS, inputs // 64, 1),
            (256, 1, 1),
            stack.addresses[matrix:],
            out,
            outputs,
            stack.form_numbers[matrix],
        )

    def _module(self, stack: Exl3Stack) -> KernelModule:
        source = CHUNK_SOURCE.with_defines(FORMS=forms_macro(stack.forms))
        return kernel_module(source, self.device, self.cache_dir)
