"""Which tensor of a checkpoint is not finite: asked when a model's first answers are not."""

from __future__ import annotations

import torch

from tandem.core.errors import ModelDamagedError
from tandem.loader.base import TensorSource

_FLOATS = frozenset(("F16", "BF16", "F32"))
"""Codes of quantized weights are integers; a GGUF block's scale is checked when it is read."""


def damaged_weights(source: TensorSource) -> ModelDamagedError | None:
    """The error that names the first tensor with a NaN or an infinite value; None where all are numbers.

    Reads every tensor of floats.
    """
    for name in source.names():
        if source.header(name).dtype not in _FLOATS:
            continue
        tensor = source.read(name)
        if not isinstance(tensor, torch.Tensor) or tensor.isfinite().all():
            continue
        bad = int((~tensor.isfinite()).sum())
        return ModelDamagedError(
            f"This model's answers are not finite, and neither are values of its tensor {name}",
            found=f"{bad:,} of {tensor.numel():,} are NaN or inf",
            remedy="download it again; `tandem models verify` compares every file with its SHA-256",
        )
    return None
