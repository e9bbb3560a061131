"""What a model sees of a checkpoint: named tensors, one at a time, from safetensors or GGUF alike.

Torch-free at import, so that ``models/*/spec.py`` can count bytes from headers alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a checkpoint, before it is read."""

    name: str
    dtype: str
    """Upper-case element or block type: ``F32``, ``F16``, ``BF16``, ``I32``, ``Q4_1``, ``Q6_K`` …"""
    shape: tuple[int, ...]
    """Row-major as in torch (a linear weight is (out_features, in_features)), in elements, not blocks."""
    stored_bytes: int
    """Bytes in the file."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A GGUF block-quantized tensor, as it lies in the file."""

    dtype: str
    """GGML block type: ``Q4_0``, ``Q4_1``, ``Q5_K`` …"""
    shape: tuple[int, ...]
    """In elements; the last dimension is cut into blocks."""
    data: torch.Tensor
    """uint8 [rows, bytes of a row], rows = product of all dimensions but the last."""


class TensorSource(Protocol):
    """Read access to one checkpoint. Names are those of the file (HF or GGUF); nothing is renamed here."""

    def names(self) -> Collection[str]: ...

    def header(self, name: str) -> TensorHeader:
        """Raises ModelDamagedError naming the tensor if the checkpoint does not hold it."""
        ...

    def read(self, name: str) -> torch.Tensor | BlockTensor:
        """The tensor on the CPU, in its stored type; memory of its own, freed when the caller drops it.

        F32, F16, BF16 (and integer types) come as torch tensors, block types as BlockTensor.
        Raises ModelDamagedError if the tensor is missing or its bytes are not all there.
        """
        ...
