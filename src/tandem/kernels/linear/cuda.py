"""Small fp16 matrices times few rows on a CUDA card, fp32 throughout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.operands import NO_ERRAND, SiteErrand
from tandem.kernels.nvrtc import KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "dense_rows.cu")


@dataclass(slots=True)
class DenseRows:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None

    def multiply(
        self,
        weight: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        bucket: int,
        errand: SiteErrand | None = None,
    ) -> None:
        """y fp32 [R, N] = x fp32 [R, K] · weight fp16 [N, K]ᵀ, R ≤ bucket, K a multiple of 8."""
        module = kernel_module(SOURCE.with_defines(ROWS=bucket), self.device, self.cache_dir)
        outputs, inputs = weight.shape
        module.launch(
            "dense_rows",
            (-(-outputs // 2) + int(errand is not None), 1, 1),
            (256, 1, 1),
            weight,
            x,
            y,
            outputs,
            inputs,
            x.shape[0],
            *(errand.arguments() if errand else NO_ERRAND),
        )
