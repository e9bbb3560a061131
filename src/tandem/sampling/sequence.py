"""One sequence's sampling state: what its next token depends on besides the logits."""

from __future__ import annotations

import numpy as np

from tandem.core.batch import SequenceSpec
from tandem.kernels.sampling.operands import Edits, Ids, RowRequest, is_greedy, no_amounts, no_ids
from tandem.sampling.filters import LogitBias
from tandem.sampling.history import TokenCounts
from tandem.sampling.sample import Points


class SequenceSampler:
    """What is asked of one sequence's rows, in order; owned by the slot, never shared.

    ``ask`` and ``accept`` take turns. Who draws in between does not matter to it.
    """

    def __init__(self, spec: SequenceSpec) -> None:
        params = spec.sampling
        output = spec.history[spec.prompt_length :]
        self._params = params
        self._constraint = spec.constraint
        self._stop_tokens = spec.stop_token_ids
        self._stop_ids = np.array(sorted(spec.stop_token_ids), dtype=np.int64)
        self._index = len(output)
        self._points = Points(params.seed)
        self._bias = LogitBias(params.logit_bias) if params.logit_bias else None
        penalized = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._output = TokenCounts(output) if penalized else None
        self._seen = TokenCounts(spec.history) if params.repetition_penalty != 1.0 else None

    @property
    def output_tokens(self) -> int:
        """Tokens drawn so far, those before a preemption included."""
        return self._index

    def is_stop(self, token_id: int) -> bool:
        return token_id in self._stop_tokens

    def ask(self, vocab_size: int) -> RowRequest:
        """The draw of the next token, valid until ``accept``.

        Raises RequestError for a bias outside the vocabulary, and whatever the constraint raises; the
        sequence must then end.
        """
        params = self._params
        point = 0.0 if is_greedy(params) else self._points.at(self._index)
        mask = None if self._constraint is None else self._constraint.token_mask()
        return RowRequest(params, point, self._edits(vocab_size), mask)

    def accept(self, token: int) -> None:
        """Take the drawn token into the history. Raises whatever the constraint raises."""
        if self._constraint is not None:
            self._constraint.accept(token)
        self._index += 1
        for counts in (self._output, self._seen):
            if counts is not None:
                counts.add(token)

    def _edits(self, vocab_size: int) -> Edits | None:
        params, seen, output, bias = self._params, self._seen, self._output, self._bias
        holding = self._index < params.min_tokens and self._stop_ids.size > 0
        if seen is None and output is None and bias is None and not holding:
            return None
        if bias is not None:
            bias.check(vocab_size)
        minus = no_amounts()
        if output is not None:
            minus = np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * output.counts
        return Edits(
            seen=no_ids() if seen is None else seen.ids,
            penalty=params.repetition_penalty,
            output=no_ids() if output is None else output.ids,
            output_minus=minus,
            biased=no_ids() if bias is None else bias.ids,
            bias=no_amounts() if bias is None else bias.amounts,
            held=self._held(vocab_size) if holding else no_ids(),
        )

    def _held(self, vocab_size: int) -> Ids:
        """Stop tokens; ids outside the vocabulary cannot be sampled anyway."""
        ids = self._stop_ids
        return ids[(ids >= 0) & (ids < vocab_size)]
