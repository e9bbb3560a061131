"""The largest values of a row, best first, without sorting the row.

Shapes: V = vocabulary size, k = values wanted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

GROUPS_PER_VALUE = 8
"""Groups looked at for each value wanted: enough that few values but the wanted ones pass the bound."""
MIN_GROUPS = 1024


def largest(values: Row, count: int) -> Ids:
    """Indices [min(count, V)] of the largest of ``values`` [V], descending; equal values: lowest index first.

    With G groups of values, the count-th largest of the G group maxima is a lower bound of the count-th
    largest value, because ``count`` values at least reach it. Only values that reach the bound are sorted.
    ``values`` must hold no NaN.
    """
    length = values.shape[0]
    groups = max(MIN_GROUPS, GROUPS_PER_VALUE * count)
    if count < length and 2 * groups <= length:
        rows = length // groups
        maxima = values[: rows * groups].reshape(rows, groups).max(axis=0)
        bound = np.partition(maxima, groups - count)[groups - count]
        reached = np.flatnonzero(values >= bound)
    elif count < length:
        bound = np.partition(values, length - count)[length - count]
        reached = np.flatnonzero(values >= bound)
    else:
        reached = np.arange(length)
    return reached[_descending(values[reached])[:count]]


def _descending(values: Row) -> Ids:
    """The stable descending order of ``values`` [N].

    Value and index are packed into one integer each, because sorting 64-bit integers is several times
    faster than a stable argsort: the float's bits are mapped so that larger floats give smaller integers.
    """
    bits = (values + np.float32(0.0)).view(np.uint32)  # -0.0 becomes 0.0: they are equal
    descending = np.where(bits >> 31, bits, ~(bits | np.uint32(1 << 31)))
    keys = descending.astype(np.uint64) << np.uint64(32) | np.arange(values.shape[0], dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(2**32 - 1)).astype(np.int64)
