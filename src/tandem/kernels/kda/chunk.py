"""Kimi delta attention over a prefill chunk on a CUDA card: fp32, rows in blocks of eight.

Alphabet: C rows, H heads of 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.kda.cuda import HEAD, StepWeights
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "kda_chunk.cu")
_BLOCK_ROWS = 8
_RECORD = 34 * HEAD
"""Floats that eight rows of a head leave for the recurrence; the source lists them."""
_SHARED_BYTES = 6 * 4 * (8 * (2 * (HEAD + 8) + HEAD + 4) + HEAD + 2 * 64 + 8 * (64 + 4))
"""Six records, their rows apart."""


@dataclass(slots=True)
class KdaChunk:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None

    def recur(
        self,
        qkv: torch.Tensor,
        forget: torch.Tensor,
        mixing: torch.Tensor,
        history: torch.Tensor,
        state: torch.Tensor,
        weights: StepWeights,
        length: int,
        lower_bound: float | None,
        out: torch.Tensor,
    ) -> None:
        """qkv fp32 [C, 3·H·128], forget fp32 [C, H·128], mixing fp32 [C, H] (rows may lie apart), history
        fp32 [3, 3·H·128] -> out fp32 [C, H·128], which may be ``forget``. state fp32 [H, 128, 128] goes
        through the first ``length`` rows; the others are padding.
        """
        rows, heads = mixing.shape
        records = torch.empty(-(-rows // _BLOCK_ROWS), heads, _RECORD, device=self.device)
        self._module().launch(
            "kda_prepare",
            (-(-rows // 16), -(-heads // 4), 1),
            (128, 1, 1),
            qkv,
            forget,
            mixing,
            history,
            weights.conv,
            weights.dt_bias,
            weights.a_log,
            records,
            rows,
            heads,
            mixing.stride(0),
            length,
            float(lower_bound or 0.0),
        )
        self._module().launch(
            "kda_scan", (heads, 2, 1), (128, 1, 1), records, state, out, rows, shared_bytes=_SHARED_BYTES
        )

    def finish(
        self,
        o: torch.Tensor,
        gate: torch.Tensor,
        weights: StepWeights,
        suh: torch.Tensor,
        norm_eps: float,
        out: torch.Tensor,
    ) -> None:
        """o, gate fp32 [C, H·128] -> norm(o) · sigmoid(gate), rotated for a product: out fp16 [C, H·128]."""
        rows, width = o.shape
        heads = width // HEAD
        self._module().launch(
            "kda_finish",
            (rows, -(-heads // 4), 1),
            (128, 1, 1),
            o,
            gate,
            weights.norm,
            suh,
            out,
            heads,
            float(norm_eps),
        )

    def _module(self) -> KernelModule:
        return kernel_module(SOURCE, self.device, self.cache_dir)
