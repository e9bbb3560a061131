"""One sequence's sampling state: what its next token depends on besides the logits."""

from __future__ import annotations

import numpy as np

from tandem.core.batch import SequenceSpec
from tandem.core.errors import TandemError
from tandem.core.requests import TokenLogprob
from tandem.sampling import filters
from tandem.sampling.history import TokenCounts
from tandem.sampling.logprobs import token_logprob
from tandem.sampling.sample import choose, greedy
from tandem.sampling.select import Row


class SequenceSampler:
    """Draws the tokens of one sequence, in order; owned by the slot, never shared."""

    def __init__(self, spec: SequenceSpec) -> None:
        params = spec.sampling
        output = spec.history[spec.prompt_length :]
        self._params = params
        self._constraint = spec.constraint
        self._stop_tokens = spec.stop_token_ids
        self._stop_ids = np.array(sorted(spec.stop_token_ids), dtype=np.int64)
        self._index = len(output)
        self._bias = filters.LogitBias(params.logit_bias) if params.logit_bias else None
        penalized = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._output = TokenCounts(output) if penalized else None
        self._seen = TokenCounts(spec.history) if params.repetition_penalty != 1.0 else None

    @property
    def output_tokens(self) -> int:
        """Tokens drawn so far, those before a preemption included."""
        return self._index

    def is_stop(self, token_id: int) -> bool:
        return token_id in self._stop_tokens

    def next_token(self, logits: Row) -> tuple[int, TokenLogprob | None]:
        """Draw the next token from raw ``logits`` [V] (read only) and take it into the history.

        Raises TandemError if the logits are not finite or nothing is left to sample, and whatever the
        constraint raises; the sequence must then end.
        """
        check_finite(logits)
        processed = self._process(logits)
        token = choose(processed, self._params, self._index)
        if self._constraint is not None:
            self._constraint.accept(token)
        self._index += 1
        for counts in (self._output, self._seen):
            if counts is not None:
                counts.add(token)
        top = self._params.logprobs
        return token, None if top is None else token_logprob(logits, token, top)

    def _process(self, logits: Row) -> Row:
        """The row that is drawn from: ``logits`` itself where nothing applies to it."""
        params = self._params
        mask = None if self._constraint is None else self._constraint.token_mask()
        holding = self._index < params.min_tokens and self._stop_ids.size > 0
        steered = self._bias is not None or self._output is not None or self._seen is not None
        if mask is None and not holding and not steered:
            return logits
        row = logits.copy()
        if self._seen is not None:
            filters.penalize_repetition(row, self._seen, params.repetition_penalty)
        if self._output is not None:
            filters.penalize_output(row, self._output, params.presence_penalty, params.frequency_penalty)
        if self._bias is not None:
            self._bias.apply(row)
        if mask is not None:
            filters.keep_allowed(row, mask)
        if holding:
            longer = row.copy()
            filters.forbid(longer, self._stop_ids)
            # A finished grammar leaves nothing but the end: then min_tokens cannot be kept.
            row = row if longer.max() == filters.FORBIDDEN and mask is not None else longer
        if row[greedy(row)] == filters.FORBIDDEN:
            raise TandemError(
                "No token is left to sample",
                found="logit_bias, min_tokens and the response format forbid all of them together",
                remedy="allow some token",
            )
        return row


def check_finite(logits: Row) -> None:
    """Raise TandemError if any of ``logits`` [V] is NaN or infinite.

    argmax finds a NaN where there is one, so two passes that allocate nothing see every case.
    """
    if np.isfinite(logits[logits.argmax()]) and np.isfinite(logits.min()):
        return
    bad = int(np.count_nonzero(~np.isfinite(logits)))
    raise TandemError("The model's logits are not finite", found=f"{bad} of {logits.shape[0]} are NaN or inf")
