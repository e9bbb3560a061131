"""The end of the last stage: logits of the rows that are sampled, and a draw of each for its sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tandem.core.batch import Run, Sampled, SlotFault
from tandem.core.errors import RequestError, TandemError
from tandem.core.log import get_logger
from tandem.engine.step import StepInFlight
from tandem.kernels.sampling.operands import RowRequest, RowResult
from tandem.models.base import RowSampler, StageModel
from tandem.sampling import host
from tandem.sampling.drawn import Drawn, drawn_by_kernel
from tandem.sampling.sequence import SequenceSampler
from tandem.sampling.verify import verify

log = get_logger("engine")


class SamplingHead:
    """Owns the slots' samplers. Used by the last stage's worker alone.

    Where the model samples on its card a step's draws are made there, all at once; otherwise on the host, one
    after the other. What a sequence asks for and how it takes a token in is the same.
    """

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
            hidden = _rows_of(hidden, rows)
        logits = self._model.logits(hidden)
        slots = [run.slot for run, _ in wanted]
        on_card = self._model.row_sampler
        draws = self._on_host(logits, slots) if on_card is None else self._on_card(logits, slots, on_card)
        for slot, drawn in zip(slots, draws, strict=True):
            try:
                accepted = verify(self._samplers[slot], drawn)
            except TandemError as error:
                step.faults.append(SlotFault(slot, str(error), asked_for=isinstance(error, RequestError)))
            except Exception as error:
                log.exception("sampling failed in slot %d", slot)
                step.faults.append(SlotFault(slot, f"Sampling failed: {type(error).__name__}: {error}"))
            else:
                step.sampled.append(Sampled(slot, accepted.tokens, accepted.logprobs))

    def _on_host(self, logits: torch.Tensor, slots: Sequence[int]) -> list[Iterator[Drawn]]:
        rows = logits.to("cpu", torch.float32).numpy()
        return [host.draws(self._samplers[slot], [row]) for slot, row in zip(slots, rows, strict=True)]

    def _on_card(self, logits: torch.Tensor, slots: Sequence[int], card: RowSampler) -> list[Iterator[Drawn]]:
        vocab_size = logits.shape[1]
        asked: list[RowRequest | Exception] = []
        for slot in slots:
            try:
                asked.append(self._samplers[slot].ask(vocab_size))
            except Exception as error:
                asked.append(error)
        results = card.sample(logits, [None if isinstance(a, Exception) else a for a in asked])
        return [_answer(a, result, vocab_size) for a, result in zip(asked, results, strict=True)]


def _rows_of(hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Some rows; an index on the card would have to be copied there, which waits for all that is queued."""
    parts = [hidden[row : row + 1] for row in rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _answer(asked: RowRequest | Exception, result: RowResult | None, vocab_size: int) -> Iterator[Drawn]:
    """The one draw of a sequence, or the error that kept it from asking."""
    if isinstance(asked, Exception):
        raise asked
    assert result is not None, "a row that was asked for has a result"
    yield drawn_by_kernel(result, vocab_size)
