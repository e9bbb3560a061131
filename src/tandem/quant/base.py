"""Weights as the CPU's linear kernels want them, and how many bytes that is. No torch at import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.core.errors import ModelUnsupportedError

LANES = 16
"""Output features of one tile (``kernels/lanes.py``)."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How one weight lies in memory.

    ``group`` 0: floats of ``bits``. Otherwise integers of ``bits``, and a scale and a minimum in fp32 for
    every ``group`` input features of an output feature.
    """

    bits: int
    group: int = 0

    def memory_bytes(self, out_features: int, in_features: int) -> int:
        """Bytes of a tiled weight: output features are padded to pairs of tiles."""
        rows = -(-out_features // (2 * LANES)) * 2 * LANES
        groups = in_features // self.group if self.group else 0
        return rows * in_features * self.bits // 8 + rows * groups * 8


_FORMATS = {
    "F32": WeightFormat(32),
    "F16": WeightFormat(16),
    "BF16": WeightFormat(16),
    "Q4_0": WeightFormat(4, 32),
    "Q4_1": WeightFormat(4, 32),
    "Q5_0": WeightFormat(8, 32),
    "Q5_1": WeightFormat(8, 32),
    "Q8_0": WeightFormat(8, 32),
    "Q2_K": WeightFormat(4, 16),
    "Q3_K": WeightFormat(8, 16),
    "Q4_K": WeightFormat(4, 32),
    "Q5_K": WeightFormat(8, 32),
    "Q6_K": WeightFormat(8, 16),
}


def weight_format(dtype: str, name: str) -> WeightFormat:
    """The format that a stored type keeps in memory. Raises ModelUnsupportedError naming the tensor."""
    if dtype not in _FORMATS:
        raise ModelUnsupportedError(
            f"Tensor {name} has a type that Tandem does not serve",
            found=dtype,
            remedy=f"a file with types among {', '.join(_FORMATS)}",
        )
    return _FORMATS[dtype]


def common_dtype(dtypes: Sequence[str]) -> str:
    """The stored type whose format holds all the given ones exactly, for weights fused into one.

    Equal types stay as they are. Different integer types meet in eight bits with groups of 16 (named
    ``Q6_K``), anything else in fp32.
    """
    if len(set(dtypes)) == 1:
        return dtypes[0]
    if all(dtype in _FORMATS and _FORMATS[dtype].group for dtype in dtypes):
        formats = {_FORMATS[dtype] for dtype in dtypes}
        return dtypes[0] if len(formats) == 1 else "Q6_K"
    return "F32"


@dataclass(frozen=True, slots=True)
class TiledWeight:
    """A weight [out_features, in_features] in the layout of ``kernels/linear/cpu.py``."""

    values: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray
    out_features: int
    in_features: int

    @property
    def memory_bytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes + self.minimum.nbytes
