"""The end of the last stage: logits of the rows that are sampled, then one sampler a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.core.batch import Run, Sampled, SlotFault
from tandem.core.errors import TandemError
from tandem.core.log import get_logger
from tandem.engine.step import StepInFlight
from tandem.models.base import StageModel
from tandem.sampling.sequence import SequenceSampler
from tandem.sampling.verify import verify

log = get_logger("engine")


class SamplingHead:
    """Owns the slots' samplers. Used by the last stage's worker alone."""

    def __init__(self, model: StageModel) -> None:
        self._model = model
        self._samplers: dict[int, SequenceSampler] = {}

    def open(self, slot: int, sampler: SequenceSampler) -> None:
        self._samplers[slot] = sampler

    def close(self, slot: int) -> None:
        self._samplers.pop(slot, None)

    def sample(
        self, step: StepInFlight, runs: Sequence[Run], last_rows: Sequence[int], hidden: torch.Tensor
    ) -> None:
        """Sample after row ``last_rows[i]`` of ``hidden`` [R, H] for every run that asks for it.

        A sequence whose sampling fails becomes a fault of its slot; an error of the model's is raised.
        """
        wanted = [(run, row) for run, row in zip(runs, last_rows, strict=True) if run.sample]
        if not wanted:
            return
        rows = [row for _, row in wanted]
        if rows != list(range(hidden.shape[0])):  # a decode step samples after every row
            hidden = hidden.index_select(0, torch.tensor(rows, device=hidden.device))
        logits = self._model.logits(hidden).to("cpu", torch.float32).numpy()
        for (run, _), row in zip(wanted, logits, strict=True):
            try:
                accepted = verify(self._samplers[run.slot], [row])
            except TandemError as error:
                step.faults.append(SlotFault(run.slot, str(error)))
            except Exception as error:
                log.exception("sampling failed in slot %d", run.slot)
                step.faults.append(SlotFault(run.slot, f"Sampling failed: {type(error).__name__}: {error}"))
            else:
                step.sampled.append(Sampled(run.slot, accepted.tokens, accepted.logprobs))
