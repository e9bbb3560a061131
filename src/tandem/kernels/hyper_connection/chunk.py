"""The launches between two sublayers of a prefill chunk on a CUDA card: ``leave`` one, ``enter`` the next.

Alphabet: C rows, P pairs, S = 4 streams of D values.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.hyper_connection.cuda import SOURCE as SITES_SOURCE
from tandem.kernels.hyper_connection.cuda import Embedding, SiteWeights
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "project_chunk.cu")
_COEFFICIENTS = 24
_PARTIAL = 25
_SLICE = 128
"""Columns of a block of ``leave_and_project``."""
_BLOCK_ROWS = 512
"""Rows that share one load of the mixer."""
_SHARED_BYTES = 4 * ((_COEFFICIENTS + 16) * (4 * _SLICE + 8) + 8 * 16 * _COEFFICIENTS)
"""A slice's mixer, sixteen rows, and eight warps' sums."""


@dataclass(frozen=True, slots=True)
class ChunkOutput:
    """A sublayer's output: for each row a weighted sum over pairs."""

    y: torch.Tensor
    """fp16 [P, D]."""
    row_pair: torch.Tensor | None = None
    """int32 [C, choices]; None: the row itself."""
    row_weight: torch.Tensor | None = None
    """fp32 [C, choices]; None: 1."""


@dataclass(frozen=True, slots=True)
class ChunkStreams:
    """The residual streams of C rows and what ``leave`` and ``enter`` keep beside them, all fp32."""

    values: torch.Tensor
    """[C, S, D]."""
    coefficients: torch.Tensor
    """[C, 24] of the site last entered."""
    partial: torch.Tensor
    """[C, D/128, 25]: projections and sums of squares of so many columns."""
    projected: torch.Tensor
    """[C, 24]: the streams times the next site's mixer."""
    squares: torch.Tensor
    """[C]: sums of squares of a row's streams."""

    @classmethod
    def empty(cls, rows: int, width: int, device: torch.device) -> ChunkStreams:
        return cls(
            torch.empty(rows, 4, width, device=device),
            torch.empty(rows, _COEFFICIENTS, device=device),
            torch.empty(rows, width // _SLICE, _PARTIAL, device=device),
            torch.empty(rows, _COEFFICIENTS, device=device),
            torch.empty(rows, device=device),
        )


@dataclass(slots=True)
class ChunkSites:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None
    sinkhorn_iterations: int
    eps: float
    norm_eps: float

    def leave(
        self, streams: ChunkStreams, last: ChunkOutput | Embedding | None, mixer: torch.Tensor | None
    ) -> None:
        """The last sublayer's output enters the streams; ``mixer`` fp32 [24, S·D]: of the next site, if there
        is one.

        None as ``last``: the streams came from another stage and stay as they are.
        """
        rows, _, width = streams.values.shape
        output = last if isinstance(last, ChunkOutput) else None
        embedding = last if isinstance(last, Embedding) else None
        choices = 0
        if output is not None:
            choices = 1 if output.row_pair is None else output.row_pair.shape[1]
        given = (
            streams.values,
            streams.coefficients,
            output.y if output else None,
            output.row_pair if output else None,
            output.row_weight if output else None,
            embedding.table if embedding else None,
            embedding.token_ids if embedding else None,
        )
        if mixer is None:
            self._sites().launch(
                "leave_chunk", (rows, 1, 1), (256, 1, 1), *given, streams.squares, width, choices
            )
            return
        slices = streams.partial.shape[1]
        module = kernel_module(SOURCE, self.device, self.cache_dir)
        module.launch(
            "leave_and_project",
            (slices, -(-rows // _BLOCK_ROWS), 1),
            (256, 1, 1),
            *given,
            mixer,
            streams.partial,
            rows,
            width,
            choices,
            shared_bytes=_SHARED_BYTES,
        )
        module.launch(
            "join_projection",
            (-(-rows // 8), 1, 1),
            (256, 1, 1),
            streams.partial,
            streams.projected,
            streams.squares,
            rows,
            slices,
        )

    def enter(
        self,
        streams: ChunkStreams,
        site: SiteWeights | None,
        norm: torch.Tensor,
        suh: torch.Tensor | None,
        x: torch.Tensor,
        rotated: torch.Tensor | None,
    ) -> None:
        """The next sublayer's normalized input: x fp16 [C, D] and, for each suh fp16 [G, D], rotated fp16
        [G, C, D].

        site None: the plain mean of the streams, after the last layer.
        """
        rows, _, width = streams.values.shape
        self._sites().launch(
            "enter_chunk",
            (rows, 1, 1),
            (256, 1, 1),
            streams.values,
            streams.projected,
            streams.squares,
            site.base if site else None,
            site.scale if site else None,
            norm,
            suh,
            streams.coefficients,
            x,
            rotated,
            width,
            0 if suh is None else suh.numel() // width,
            int(site is None),
            self.sinkhorn_iterations,
            float(self.eps),
            float(self.norm_eps),
            shared_bytes=4 * width,
        )

    def _sites(self) -> KernelModule:
        return kernel_module(SITES_SOURCE, self.device, self.cache_dir)
