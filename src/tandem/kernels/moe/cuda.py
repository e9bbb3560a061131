"""Expert routing on a CUDA card: logits to the jobs and inputs of the grouped products, without the host.

Alphabet: R rows (≤ 16), E routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.operands import NO_ERRAND, Exl3Stack, Inputs, Jobs, SiteErrand
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.nvrtc import KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "route.cu")
MOST_EXPERTS = 1023
MOST_ROWS = 16
MOST_CHOICES = 15
_WARPS = 16


def most_jobs(pairs: int, matrices: int, job_rows: int) -> int:
    """Jobs of at most ``job_rows`` pairs that so many pairs can need."""
    return min(pairs, matrices + pairs // job_rows)


@dataclass(frozen=True, slots=True)
class Routing:
    """Where the routing goes."""

    jobs: Jobs
    row_pair: torch.Tensor
    """int32 [R, choices]."""
    row_matrix: torch.Tensor
    """int32 [R, choices]."""
    row_weight: torch.Tensor
    """fp32 [R, choices]."""
    job_rows: int

    @classmethod
    def empty(
        cls, rows: int, matrices: int, choices: int, device: torch.device, job_rows: int = MOST_ROWS
    ) -> Routing:
        """Of jobs of at most ``job_rows`` pairs."""
        pairs = rows * choices
        return cls(
            Jobs.empty(pairs, most_jobs(pairs, matrices, job_rows), device),
            torch.zeros(rows, choices, dtype=torch.int32, device=device),
            torch.zeros(rows, choices, dtype=torch.int32, device=device),
            torch.zeros(rows, choices, device=device),
            job_rows,
        )


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rows on their way into the products of the chosen experts."""

    x: torch.Tensor
    """fp32 [R, k]."""
    stack: Exl3Stack
    inputs: Inputs
    """Of every pair of every group."""


@dataclass(slots=True)
class Router:
    """Launches for one card. ``shared``: 1 if a shared expert follows the routed ones as matrix E."""

    device: torch.device
    cache_dir: Path | None
    top_k: int
    shared: int
    normalize: bool
    scaling: float
    processors: int = 1

    def route(
        self,
        logits: torch.Tensor,
        correction_bias: torch.Tensor,
        out: Routing,
        rotation: Rotation | None = None,
        errand: SiteErrand | None = None,
    ) -> None:
        """logits fp32 [R, E], correction_bias fp32 [E]; ``errand`` is done beside it."""
        rows, experts = logits.shape
        jobs = out.jobs
        groups, width = (rotation.stack.groups, rotation.stack.inputs) if rotation else (0, 0)
        rotations = jobs.capacity * groups * (width // ROTATION)
        source = SOURCE.with_defines(LANE_EXPERTS=-(-experts // 32))
        kernel_module(source, self.device, self.cache_dir).launch(
            "route",
            (max(1, min(-(-rotations // _WARPS), self.processors)) + int(errand is not None), 1, 1),
            (32 * _WARPS, 1, 1),
            logits,
            correction_bias,
            jobs.pair_row,
            jobs.pair_matrix,
            jobs.pair_count,
            jobs.job_start,
            jobs.job_matrix,
            jobs.job_count,
            out.row_pair,
            out.row_matrix,
            out.row_weight,
            rows,
            out.job_rows,
            experts,
            self.top_k,
            self.shared,
            int(self.normalize),
            float(self.scaling),
            rotation.x if rotation else None,
            rotation.stack.suh if rotation else None,
            rotation.inputs.rotated if rotation else None,
            rotation.inputs.peaks if rotation else None,
            width,
            groups,
            jobs.capacity,
            *(errand.arguments() if errand else NO_ERRAND),
        )
