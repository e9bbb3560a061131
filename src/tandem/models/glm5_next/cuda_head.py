"""From the residual streams of few rows to their logits: mean of the streams, norm, vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.cuda import Exl3Rows, Jobs, Scratch
from tandem.kernels.hyper_connection.cuda import Sites, Streams
from tandem.models.glm5_next.cuda_stage import DeviceHead, DeviceStage


@dataclass(frozen=True, slots=True)
class HeadStep:
    """The captured head for R rows."""

    values: torch.Tensor
    """fp32 [R, S, D], in."""
    logits: torch.Tensor
    """fp32 [R, V], out."""
    replay: Callable[[], None]


class HeadProgram:
    """The launches for R rows over fixed addresses: ``streams.values`` in, ``logits`` fp32 [R, V] out."""

    def __init__(
        self, stage: DeviceStage, head: DeviceHead, rows: int, scratch: Scratch, cache_dir: Path | None
    ) -> None:
        spec, device = stage.spec, stage.device
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._head = head
        self._rows = rows
        self._scratch = scratch
        self._exl3 = Exl3Rows(device, cache_dir, processors)
        self._sites = Sites(device, cache_dir, spec.sinkhorn_iterations, spec.streams_eps, spec.rms_norm_eps)
        self._jobs = Jobs.dense(rows, device)
        self.streams = Streams.empty(rows, spec.hidden_size, device)
        self.logits = torch.empty(rows, spec.vocab_size, device=device)

    def run(self) -> None:
        """Queue the launches."""
        stack = self._head.vocabulary
        inputs = self._scratch.inputs(self._rows, stack.inputs)
        self._sites.enter(self.streams, None, self._head.norm, None, stack.suh, inputs)
        splits = self._exl3.splits(stack, self._jobs, self._rows)
        sums = self._scratch.outputs(splits, self._jobs.capacity, stack.widest)
        self._exl3.product(inputs, stack, self._jobs, sums, self._rows)
        self._exl3.finish(sums, stack, self._jobs, self.logits)
