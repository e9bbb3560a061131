"""From the residual streams of few rows to their logits: mean of the streams, norm, vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.cuda import Exl3Rows
from tandem.kernels.exl3.operands import Exl3Stack, Jobs, Scratch
from tandem.kernels.hyper_connection.cuda import Sites, Streams
from tandem.models.glm5_next.dimensions import Glm5NextSpec


@dataclass(frozen=True, slots=True)
class DeviceHead:
    norm: torch.Tensor
    vocabulary: Exl3Stack


@dataclass(frozen=True, slots=True)
class HeadStep:
    """The captured head for R rows."""

    values: torch.Tensor
    """fp32 [R, S, D], in."""
    logits: torch.Tensor
    """fp32 [R, V], out."""
    replay: Callable[[], None]


class HeadProgram:
    """The launches for the rows of ``streams``, over fixed addresses."""

    def __init__(
        self, spec: Glm5NextSpec, head: DeviceHead, streams: Streams, scratch: Scratch, cache_dir: Path | None
    ) -> None:
        device, rows = streams.values.device, streams.values.shape[0]
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._head = head
        self._scratch = scratch
        self._exl3 = Exl3Rows(device, cache_dir, processors)
        self._sites = Sites(device, cache_dir, spec.sinkhorn_iterations, spec.streams_eps, spec.rms_norm_eps)
        self._jobs = Jobs.dense(rows, device)
        self.streams = streams
        self._padded_logits = torch.empty(rows, head.vocabulary.outputs[0], device=device)
        self.logits = self._padded_logits[:, : spec.vocab_size]
        """fp32 [R, V]; rows lie apart by V and its padding."""

    def run(self) -> None:
        """Queue the launches."""
        stack, rows = self._head.vocabulary, self._jobs.capacity
        inputs = self._scratch.inputs(rows, stack.inputs)
        self._sites.enter(self.streams, None, self._head.norm, None, stack.suh, inputs)
        splits = self._exl3.splits(stack, self._jobs, rows)
        sums = self._scratch.outputs(splits, rows, stack.widest, stack.integer)
        self._exl3.product(inputs, stack, self._jobs, sums, rows)
        self._exl3.finish(sums, stack, self._jobs, self._padded_logits)
