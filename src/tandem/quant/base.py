"""Weights as the CPU's linear kernels want them, and how many bytes that is. No torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tandem.core.errors import ModelUnsupportedError

LANES = 16
"""Output features of one tile (``kernels/lanes.py``)."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How one weight lies in memory.

    ``group`` 0: floats of ``bits``. Otherwise integers of ``bits``, and a scale and a minimum of
    ``scale_bits`` each for every ``group`` input features of an output feature.
    """

    bits: int
    group: int = 0
    scale_bits: int = 32
    bfloat: bool = False

    def memory_bytes(self, out_features: int, in_features: int) -> int:
        """Bytes of a tiled weight: output features are padded to pairs of tiles."""
        rows = -(-out_features // (2 * LANES)) * 2 * LANES
        groups = in_features // self.group if self.group else 0
        return rows * in_features * self.bits // 8 + rows * groups * self.scale_bits // 4


_FORMATS = {
    "F32": WeightFormat(32),
    "F16": WeightFormat(16),
    "BF16": WeightFormat(16, bfloat=True),
    "Q4_0": WeightFormat(4, 32, scale_bits=16),
    "Q4_1": WeightFormat(4, 32, scale_bits=16),
    "Q5_0": WeightFormat(8, 32, scale_bits=16),
    "Q5_1": WeightFormat(8, 32, scale_bits=16),
    "Q8_0": WeightFormat(8, 32, scale_bits=16),
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


def common_format(dtypes: Mapping[str, str]) -> WeightFormat:
    """The format that holds weights of all these stored types exactly, for weights fused into one.

    ``dtypes`` maps tensor names to their types. Different integer formats meet in eight bits with groups of
    16, anything else in fp32. Raises ModelUnsupportedError naming a tensor of a type that is not served.
    """
    formats = {weight_format(dtype, name) for name, dtype in dtypes.items()}
    if len(formats) == 1:
        return formats.pop()
    return WeightFormat(8, 16) if all(form.group for form in formats) else WeightFormat(32)


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
