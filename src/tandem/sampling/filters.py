"""What changes a row of logits before a token is drawn from it, and which tokens may be drawn.

Order, as clients of the OpenAI API and of vLLM expect it::

    raw logits ─ repetition ─ presence, frequency ─ bias ─ min_tokens ─ grammar   change the row in place
               ─ temperature ─ min_p ─ top_k ─ top_p                              choose among what is left

Shapes: V = vocabulary size, N = distinct tokens concerned, S = survivors.
"""

from __future__ import annotations

import numpy as np

from tandem.core.errors import RequestError
from tandem.core.requests import SamplingParams
from tandem.sampling.select import Ids, Row, largest

BAN = -100.0
"""A bias this low is a ban: added to the logit it would still let the token through at high temperatures."""
FORBIDDEN = np.float32(-np.inf)
FIRST_NUCLEUS_TOKENS = 64


def penalize_repetition(row: Row, seen: Ids, penalty: float) -> None:
    """Divide positive and multiply negative logits of the tokens of prompt and output by ``penalty``."""
    values = row[seen]
    factor = np.float32(penalty)
    row[seen] = np.where(values > 0, values / factor, values * factor)


class LogitBias:
    """``logit_bias`` as arrays: distinct ``ids`` [N] and what is added to each, ``amounts`` [N]."""

    def __init__(self, pairs: tuple[tuple[int, float], ...]) -> None:
        ids = np.array([token for token, _ in pairs], dtype=np.int64)
        amounts = np.array([amount for _, amount in pairs], dtype=np.float32)
        self.ids, where = np.unique(ids, return_inverse=True)
        self.amounts = np.zeros(self.ids.shape[0], dtype=np.float32)
        np.add.at(self.amounts, where, np.where(amounts <= BAN, FORBIDDEN, amounts))

    def check(self, vocab_size: int) -> None:
        """Raise RequestError for a token that the vocabulary lacks."""
        outside = (self.ids < 0) | (self.ids >= vocab_size)
        if outside.any():
            raise RequestError(
                "logit_bias names a token outside the vocabulary",
                param="logit_bias",
                found=f"token {self.ids[outside][0]}, vocabulary of {vocab_size}",
            )


def keep_allowed(row: Row, mask: bytes) -> None:
    """Keep tokens whose bit is set (token i: bit i%8 of byte i//8); those beyond the mask are forbidden."""
    size = row.shape[0]
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=size, bitorder="little")
    np.copyto(row, FORBIDDEN, where=bits == 0)


def tempered_weights(logits: Row, peak: np.float32, temperature: float) -> Row:
    """exp((logits − peak) / temperature): in 0..1, 1 at the peak, at any temperature above 0."""
    scale = np.float32(max(temperature, 1e-30))
    with np.errstate(over="ignore", under="ignore"):
        weights: Row = logits - peak
        weights /= scale
        np.exp(weights, out=weights)
    return weights


def survivors(logits: Row, params: SamplingParams) -> Ids | None:
    """The tokens [S] that min_p, top_k and top_p leave, ascending; None = all.

    The best token always survives. top_k keeps exactly k tokens: of equal logits the lowest ids.
    top_p is measured on what min_p and top_k have left, and keeps the token that crosses it.
    """
    ids: Ids | None = None
    if params.min_p > 0.0:
        reach = params.temperature * float(np.log(min(params.min_p, 1.0)))
        ids = np.flatnonzero(logits >= logits.max() + np.float32(reach))
    values = logits if ids is None else logits[ids]
    if 0 < params.top_k < values.shape[0]:
        best = np.sort(largest(values, params.top_k))
        ids = best if ids is None else ids[best]
        values = values[best]
    if params.top_p < 1.0:
        best = np.sort(nucleus(values, params.top_p, params.temperature))
        ids = best if ids is None else ids[best]
    return ids


def nucleus(logits: Row, top_p: float, temperature: float) -> Ids:
    """Indices of the fewest best tokens (one or more) whose probabilities sum to ``top_p``, best first.

    The nucleus is usually small, so a growing number of best tokens is tried before a full sort.
    """
    peak = logits.max()
    wanted = top_p * float(tempered_weights(logits, peak, temperature).sum(dtype=np.float64))
    count = FIRST_NUCLEUS_TOKENS
    while True:
        best = largest(logits, count)
        sums = np.cumsum(tempered_weights(logits[best], peak, temperature), dtype=np.float64)
        if sums[-1] >= wanted or count >= logits.shape[0]:
            return best[: int(np.searchsorted(sums, wanted)) + 1]
        count *= 8
