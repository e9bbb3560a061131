"""What sampling is, in plain numpy: sort the row, sum integers, take the token at the point.

Weights are fixed-point numbers, so that every sum is exact whatever its order; they come from basic fp32
operations alone, so that every machine makes the same ones. Shapes: V = vocabulary size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.kernels.sampling.operands import (
    LOG2_E,
    WEIGHT_BITS,
    Edits,
    Ids,
    RawLogprobs,
    Row,
    RowRequest,
    RowResult,
    fraction,
)

Keys = npt.NDArray[np.uint32]
Weights = npt.NDArray[np.uint64]

FORBIDDEN = np.float32(-np.inf)
EXP2 = (0.6931472, 0.24022648, 0.05550332, 0.009618437, 0.0013398873, 0.00015353324)
"""2^f for f in ±1/2 is 1 + f · (…): a minimax fit, off by 2e-9 at most, by 1e-7 in fp32."""
_MANTISSA_BITS = 30


def keys_of(logits: Row) -> Keys:
    """Unsigned integers in the order of the logits; −0 is 0."""
    bits = (logits + np.float32(0.0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


NOBODY = keys_of(np.array([FORBIDDEN]))[0]
"""The key of a forbidden token."""


def weights_of(logits: Row, peak: np.float32, tempering: np.float32) -> Weights:
    """2^((logits − peak) · tempering) as multiples of 2^-44, cut off; 0 below the smallest."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        octaves = np.fmax((logits - peak) * tempering, np.float32(-63.0))
    whole = np.rint(octaves)
    part = octaves - whole
    value = np.full_like(part, EXP2[-1])
    for coefficient in EXP2[-2::-1]:
        value = value * part + np.float32(coefficient)
    value = value * part + np.float32(1.0)
    mantissa = (value * np.float32(2.0**_MANTISSA_BITS)).astype(np.uint64)
    weights: Weights = mantissa << np.uint64(WEIGHT_BITS - _MANTISSA_BITS) >> (-whole).astype(np.uint64)
    return weights


def sample(logits: Row, request: RowRequest) -> RowResult:
    """The token of raw ``logits`` [V], which stay as they are."""
    bad = int(np.count_nonzero(~np.isfinite(logits)))
    if bad:
        return RowResult(-1, bad)
    row = edited(logits, request.edits, request.mask)
    peak = row.max()
    if peak == FORBIDDEN:
        return RowResult(-1)
    if request.greedy:
        token, threshold, last_tie = int(row.argmax()), 0, -1
    else:
        kept = survivors(row, request)
        token = draw(weights_of(row[kept], peak, request.tempering), kept, request.point)
        threshold = int(keys_of(row)[kept].min())
        last_tie = int(kept[keys_of(row)[kept] == threshold].max())
    top = request.params.logprobs
    logprobs = None if top is None else raw_logprobs(logits, token, top)
    return RowResult(token, 0, threshold, last_tie, logprobs)


def edited(logits: Row, edits: Edits | None, mask: bytes | None) -> Row:
    """The row that is drawn from, [V]."""
    row = logits.copy()
    edits = edits or Edits()
    values = row[edits.seen]
    penalty = np.float32(edits.penalty)
    row[edits.seen] = np.where(values > 0, values / penalty, values * penalty)
    row[edits.output] -= edits.output_minus
    row[edits.biased] += edits.bias
    if mask is not None:
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=row.shape[0], bitorder="little")
        row[bits == 0] = FORBIDDEN
    shorter = row.copy()
    shorter[edits.held] = FORBIDDEN
    return row if mask is not None and shorter.max() == FORBIDDEN else shorter


def survivors(row: Row, request: RowRequest) -> Ids:
    """The tokens that min_p, top_k and top_p leave, ascending: [1..V]."""
    keys, params = keys_of(row), request.params
    lowest = keys_of(np.array([row.max() + request.reach]))[0]
    kept = np.flatnonzero((keys > NOBODY) & (keys >= lowest))
    best_first = kept[np.lexsort((kept, -keys[kept].astype(np.int64)))]
    if params.top_k > 0:
        best_first = best_first[: params.top_k]
    if params.top_p < 1.0:
        sums = np.cumsum(weights_of(row[best_first], row.max(), request.tempering))
        part = fraction(params.top_p) * int(sums[-1])
        wanted = max(-(-part >> 64), 1)  # rounded up
        best_first = best_first[: int(np.searchsorted(sums, np.uint64(wanted))) + 1]
    return np.sort(best_first)


def draw(weights: Weights, ids: Ids, point: float) -> int:
    """The first of ``ids`` at which the running sum of ``weights`` exceeds ``point`` of their total."""
    sums = np.cumsum(weights)
    target = fraction(point) * int(sums[-1]) >> 64
    return int(ids[int(np.searchsorted(sums, np.uint64(target), side="right"))])


def raw_logprobs(logits: Row, token: int, top: int) -> RawLogprobs:
    """What the probabilities of ``token`` and of the ``top`` best tokens follow from."""
    peak = logits.max()
    best = np.lexsort((np.arange(logits.shape[0]), -keys_of(logits).astype(np.int64)))[:top]
    return RawLogprobs(
        peak=float(peak),
        total=int(weights_of(logits, peak, LOG2_E).sum()),
        logit=float(logits[token]),
        top=tuple((int(i), float(logits[i])) for i in best),
    )
