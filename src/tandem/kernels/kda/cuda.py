"""The decode and verify step of Kimi delta attention on a CUDA card.

Alphabet: R rows, N runs, H heads of 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.operands import Inputs, Sums
from tandem.kernels.nvrtc import KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "kda_rows.cu")
HEAD = 128
TAPS = 4
_MAX_ROWS = 16
SHARED_BYTES = 4 * (
    _MAX_ROWS * 3 * HEAD  # raw
    + 3 * _MAX_ROWS * HEAD  # decays, gates, outputs
    + _MAX_ROWS * 2 * HEAD  # low-rank inputs
    + _MAX_ROWS
    + 2 * 3 * HEAD
    + 2 * HEAD
    + 2 * 8
    + 2 * 2 * 4 * HEAD
    + 2 * 4
)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """Everything of a layer but its two large products."""

    small: torch.Tensor
    """fp16 [2·128 + H, hidden]: f_a, g_a, b, for ``DenseRows``."""
    forget_up: torch.Tensor
    """fp16 [H·128, 128]."""
    gate_up: torch.Tensor
    """fp16 [H·128, 128]."""
    conv: torch.Tensor
    """fp32 [3·H·128, 4]."""
    dt_bias: torch.Tensor
    """fp32 [H·128]."""
    a_log: torch.Tensor
    """fp32 [H]."""
    norm: torch.Tensor
    """fp32 [128]."""


@dataclass(frozen=True, slots=True)
class DeviceSlots:
    """Recurrent state of the slots of one layer."""

    state: torch.Tensor
    """fp32 [slots, H, 128 keys, 128 values]."""
    history: torch.Tensor
    """fp32 [slots, 3, 3·H·128]."""
    pending: torch.Tensor
    """fp32 [slots, 16, 4·H·128 + H]: inputs, log decays, mixing rates."""
    committed: torch.Tensor
    """int32 [slots, H]: the position whose state this is; a head's block keeps its own."""

    @classmethod
    def zeros(cls, slots: int, heads: int, device: torch.device) -> DeviceSlots:
        width = heads * HEAD
        return cls(
            torch.zeros(slots, heads, HEAD, HEAD, device=device),
            torch.zeros(slots, TAPS - 1, 3 * width, device=device),
            torch.zeros(slots, _MAX_ROWS, 4 * width + heads, device=device),
            torch.zeros(slots, heads, dtype=torch.int32, device=device),
        )

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.history.nbytes + self.pending.nbytes + self.committed.nbytes

    def reset(self, slot: int) -> None:
        for part in (self.state, self.history, self.committed):
            part[slot].zero_()


@dataclass(frozen=True, slots=True)
class Runs:
    """int32 on the card."""

    positions: torch.Tensor
    """[R]."""
    run_starts: torch.Tensor
    """[N + 1]; an empty run does nothing."""
    slots: torch.Tensor
    """[N]."""


@dataclass(slots=True)
class KdaRows:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None
    lower_bound: float | None
    norm_eps: float

    def step(
        self,
        qkv: Sums,
        qkv_svh: torch.Tensor,
        small: torch.Tensor,
        weights: StepWeights,
        out_suh: torch.Tensor,
        slots: DeviceSlots,
        runs: Runs,
        out: Inputs,
    ) -> None:
        """From the sums of the qkv product (one matrix, or three groups) to the output product's input."""
        heads = weights.a_log.numel()
        rows = small.shape[0]
        kernel_module(SOURCE, self.device, self.cache_dir).launch(
            "kda_rows",
            (heads, runs.slots.numel(), 1),
            (512, 1, 1),
            qkv.values,
            qkv.sums,
            qkv.scale,
            qkv_svh,
            small,
            weights.forget_up,
            weights.gate_up,
            weights.conv,
            weights.dt_bias,
            weights.a_log,
            weights.norm,
            out_suh,
            runs.positions,
            runs.run_starts,
            runs.slots,
            slots.state,
            slots.history,
            slots.pending,
            slots.committed,
            out.rotated,
            out.peaks,
            qkv.splits,
            rows,
            qkv.pitch,
            int(qkv.scale.numel() == 3 * rows),
            small.shape[1],
            float(self.lower_bound or 0.0),
            float(self.norm_eps),
            shared_bytes=SHARED_BYTES,
        )
