"""The choice of one token from one row of processed logits."""

from __future__ import annotations

import numpy as np

from tandem.core.requests import SamplingParams
from tandem.sampling.filters import survivors, tempered_weights
from tandem.sampling.select import Row

BLOCK_TOKENS = 512


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) for the ``index``-th output token of a sequence.

    Philox is a counter-based generator: the number is a pure function of key and counter, so nothing that
    other sequences draw can move it. Any Python integer is a seed (taken modulo 2^128).
    """
    generator = np.random.Philox(key=seed % 2**128, counter=index)
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def greedy(logits: Row) -> int:
    """The best token of ``logits`` [V]; of equal ones the lowest id."""
    return int(logits.argmax())


def draw(weights: Row, point: float) -> int:
    """The index at which the running sum of ``weights`` [N] passes ``point`` (0..1) of their total.

    Never an index of weight 0; at least one weight must be positive. Sums run over blocks first, since a
    running sum over a whole vocabulary costs more than all the rest of sampling.
    """
    size = weights.shape[0]
    starts = np.arange(0, size, BLOCK_TOKENS)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = point * sums[-1]
    block = min(int(np.searchsorted(sums, target, side="right")), int(np.searchsorted(sums, sums[-1])))
    start = block * BLOCK_TOKENS
    inner = np.cumsum(weights[start : start + BLOCK_TOKENS], dtype=np.float64)
    rest = target - (sums[block - 1] if block else 0.0)
    # Rounding may carry the target past an end: the last index of positive weight is where the sum peaks.
    within = min(int(np.searchsorted(inner, rest, side="right")), int(np.searchsorted(inner, inner[-1])))
    if weights[start + within] == 0.0:
        within = int(np.flatnonzero(weights[start : start + BLOCK_TOKENS])[0])
    return start + within


def choose(logits: Row, params: SamplingParams, index: int) -> int:
    """One token of ``logits`` [V] (forbidden ones are −inf, one at least is not), the ``index``-th output."""
    if params.temperature <= 0.0 or params.top_k == 1:
        return greedy(logits)
    ids = survivors(logits, params)
    values = logits if ids is None else logits[ids]
    weights = tempered_weights(values, values.max(), params.temperature)
    position = draw(weights, uniform(params.seed, index))
    return position if ids is None else int(ids[position])
