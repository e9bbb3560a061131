"""Sampling on the host, in numpy: what ``kernels/sampling`` does on a card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tandem.kernels.sampling.operands import RowRequest
from tandem.sampling import filters
from tandem.sampling.drawn import Drawn, not_finite, nothing_left
from tandem.sampling.logprobs import token_logprob
from tandem.sampling.sample import choose, greedy
from tandem.sampling.select import Row
from tandem.sampling.sequence import SequenceSampler


def draws(sampler: SequenceSampler, rows: Iterable[Row]) -> Iterator[Drawn]:
    """Draw from each of ``rows`` ([V], raw logits, read only) as ``sampler`` then asks, when it is needed.

    Raises TandemError if the logits are not finite or nothing is left to sample, and what ``ask`` raises.
    """
    for row in rows:
        yield draw(row, sampler.ask(row.shape[0]))


def draw(logits: Row, request: RowRequest) -> Drawn:
    """One token of raw ``logits`` [V], which stay as they are. Raises TandemError as ``draws`` does."""
    check_finite(logits)
    token = choose(processed(logits, request), request.params, request.point)
    top = request.params.logprobs
    return Drawn(token, None if top is None else token_logprob(logits, token, top))


def processed(logits: Row, request: RowRequest) -> Row:
    """The row that is drawn from: ``logits`` itself where nothing applies to it.

    Raises TandemError if no token is left.
    """
    edits, mask = request.edits, request.mask
    if edits is None and mask is None:
        return logits
    row = logits.copy()
    if edits is not None:
        filters.penalize_repetition(row, edits.seen, edits.penalty)
        row[edits.output] -= edits.output_minus
        row[edits.biased] += edits.bias
    if mask is not None:
        filters.keep_allowed(row, mask)
    if edits is not None and edits.held.size:
        longer = row.copy()
        longer[edits.held] = filters.FORBIDDEN
        # A finished grammar leaves nothing but the end: then min_tokens cannot be kept.
        row = row if longer.max() == filters.FORBIDDEN and mask is not None else longer
    if row[greedy(row)] == filters.FORBIDDEN:
        raise nothing_left()
    return row


def check_finite(logits: Row) -> None:
    """Raise TandemError if any of ``logits`` [V] is NaN or infinite.

    argmax finds a NaN where there is one, so two passes that allocate nothing see every case.
    """
    if np.isfinite(logits[logits.argmax()]) and np.isfinite(logits.min()):
        return
    raise not_finite(int(np.count_nonzero(~np.isfinite(logits))), logits.shape[0])
