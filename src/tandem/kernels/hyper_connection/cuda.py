"""The launches between two sublayers on a CUDA card: ``leave`` one, ``enter`` the next.

Alphabet: R rows, S = 4 streams of D values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.operands import Inputs, SiteErrand, Sums
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "sites.cu")
_COEFFICIENTS = 24
_PARTIAL = 25


@dataclass(frozen=True, slots=True)
class SiteWeights:
    """A site's mixing and the norm of its sublayer, fp32."""

    mixer: torch.Tensor
    """[24, S·D]."""
    base: torch.Tensor
    """[24]."""
    scale: torch.Tensor
    """[3]."""
    norm: torch.Tensor
    """[D]."""


@dataclass(frozen=True, slots=True)
class Output:
    """A sublayer's output as its last product left it: for each row a weighted sum over pairs."""

    sums: Sums
    svh: torch.Tensor
    """fp16 [M, D]."""
    pair_matrix: torch.Tensor | None = None
    """int32 [P]; None: matrix 0."""
    row_pair: torch.Tensor | None = None
    """int32 [R, choices]; None: the row itself."""
    row_weight: torch.Tensor | None = None
    """fp32 [R, choices]; None: 1."""
    row_matrix: torch.Tensor | None = None
    """int32 [R, choices], ``pair_matrix`` of ``row_pair``: saves a look-up."""


@dataclass(frozen=True, slots=True)
class Embedding:
    table: torch.Tensor
    """fp16 [V, D]."""
    token_ids: torch.Tensor
    """int64 [R]."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The residual streams of R rows and what ``leave`` and ``enter`` keep beside them, all fp32."""

    values: torch.Tensor
    """[R, S, D]."""
    coefficients: torch.Tensor
    """[R, 24] of the site last entered."""
    partial: torch.Tensor
    """[R, D/128, 25]."""

    @classmethod
    def empty(cls, rows: int, width: int, device: torch.device) -> Streams:
        return cls(
            torch.empty(rows, 4, width, device=device),
            torch.empty(rows, _COEFFICIENTS, device=device),
            torch.empty(rows, width // ROTATION, _PARTIAL, device=device),
        )

    def first(self, rows: int) -> Streams:
        return Streams(self.values[:rows], self.coefficients[:rows], self.partial[:rows])


@dataclass(slots=True)
class Sites:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None
    sinkhorn_iterations: int
    eps: float
    norm_eps: float

    def leave(self, streams: Streams, last: Output | Embedding | None, mixer: torch.Tensor | None) -> None:
        """The last sublayer's output enters the streams; ``mixer``: of the next site, if there is one.

        None as ``last``: the streams came from another stage and stay as they are.
        """
        rows, _, width = streams.values.shape
        output = last if isinstance(last, Output) else None
        embedding = last if isinstance(last, Embedding) else None
        choices = 0
        if output is not None:
            choices = 1 if output.row_pair is None else output.row_pair.shape[1]
        self._module().launch(
            "leave_site",
            (width // ROTATION, rows, 1),
            (384, 1, 1),
            streams.values,
            streams.coefficients,
            output.sums.values if output else None,
            output.sums.sums if output else None,
            output.sums.scale if output else None,
            output.svh if output else None,
            output.pair_matrix if output else None,
            output.row_pair if output else None,
            output.row_matrix if output else None,
            output.row_weight if output else None,
            embedding.table if embedding else None,
            embedding.token_ids if embedding else None,
            mixer,
            streams.partial,
            width,
            choices,
            output.sums.splits if output else 0,
            output.sums.scale.numel() if output else 0,
            output.sums.pitch if output else 0,
        )

    def enter(
        self,
        streams: Streams,
        site: SiteWeights | None,
        norm: torch.Tensor,
        x: torch.Tensor | None,
        suh: torch.Tensor | None,
        inputs: Inputs | None,
        *,
        leave_errand: bool = False,
    ) -> SiteErrand | None:
        """The next sublayer's normalized input: ``x`` fp32 [R, D] and, for each suh fp16 [G, D], rotated.

        site None: the plain mean of the streams, after the last layer. leave_errand: the site's coefficients
        are not made yet; what is returned has to be done by some launch before the next ``leave``.
        """
        rows, _, width = streams.values.shape
        self._module().launch(
            "enter_site",
            (rows, 1, 1),
            (1024, 1, 1),
            streams.values,
            streams.partial,
            site.base if site else None,
            site.scale if site else None,
            norm,
            suh,
            x,
            inputs.rotated if inputs else None,
            inputs.peaks if inputs else None,
            width,
            0 if suh is None else suh.numel() // width,
            int(site is None),
            float(self.eps),
            float(self.norm_eps),
            shared_bytes=4 * width,
        )
        if site is None:
            return None
        errand = SiteErrand(
            streams.partial,
            site.base,
            site.scale,
            streams.coefficients,
            self.sinkhorn_iterations,
            float(self.eps),
            float(self.norm_eps),
        )
        if leave_errand:
            return errand
        self.run_errand(errand)
        return None

    def run_errand(self, errand: SiteErrand) -> None:
        """In a launch of its own, where no other takes it along."""
        partial, base, scale, coefficients, *rest = errand.arguments()
        self._module().launch(
            "site_coefficients",
            (1, 1, 1),
            (512, 1, 1),
            partial,
            base,
            scale,
            coefficients,
            errand.partial.shape[0],
            *rest,
        )

    def _module(self) -> KernelModule:
        return kernel_module(SOURCE, self.device, self.cache_dir)
