"""The choice of one token from one row of processed logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.core.requests import SamplingParams
from tandem.kernels.sampling.operands import is_greedy
from tandem.sampling.filters import survivors, tempered_weights
from tandem.sampling.select import Row

BLOCK_TOKENS = 512
POINTS_AHEAD = 64


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) for the ``index``-th output token of a sequence.

    Philox is a counter-based generator: the number is a pure function of key and counter, so nothing that
    other sequences draw can move it. Any Python integer is a seed (taken modulo 2^128).
    """
    return float(uniforms(seed, index, 1)[0])


def uniforms(seed: int, first: int, count: int) -> npt.NDArray[np.float64]:
    """``uniform(seed, first + i)`` for i in 0..count: the counter steps once in four numbers."""
    generator = np.random.Philox(key=seed % 2**128, counter=first)
    raw = generator.random_raw(4 * count)[::4] >> np.uint64(11)
    return raw.astype(np.float64) * 2.0**-53


class Points:
    """``uniform(seed, index)`` of one sequence, made ahead: a generator costs as much as 64 numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._first = 0
        self._made: list[float] = []

    def at(self, index: int) -> float:
        if not self._first <= index < self._first + len(self._made):
            self._first, self._made = index, uniforms(self._seed, index, POINTS_AHEAD).tolist()
        return self._made[index - self._first]


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


def choose(logits: Row, params: SamplingParams, point: float) -> int:
    """The token of ``logits`` [V] (forbidden ones are −inf, one at least is not) at ``point`` in 0..1."""
    if is_greedy(params):
        return greedy(logits)
    ids = survivors(logits, params)
    values = logits if ids is None else logits[ids]
    weights = tempered_weights(values, values.max(), params.temperature)
    position = draw(weights, point)
    return position if ids is None else int(ids[position])
