"""Logprobs of the raw model distribution: temperature 1, before penalties, bias, filters and grammar."""

from __future__ import annotations

import math

import numpy as np

from tandem.core.requests import TokenLogprob
from tandem.sampling.select import Row, largest


def token_logprob(logits: Row, token_id: int, top: int) -> TokenLogprob:
    """Natural-log probabilities of ``token_id`` and of the ``top`` best tokens under raw ``logits`` [V].

    Every value is ≤ 0; equal ones are listed lowest id first.
    """
    peak = logits.max()
    log_total = float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    best = largest(logits, top) if top else ()
    return TokenLogprob(
        token_id=token_id,
        logprob=float(logits[token_id]) - log_total,
        top=tuple((int(i), float(logits[i]) - log_total) for i in best),
    )
