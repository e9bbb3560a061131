"""An EXL3 matrix as a linear layer: the codes stay packed in memory."""

from __future__ import annotations

import torch

from tandem.core.errors import ModelDamagedError
from tandem.kernels.exl3 import cpu, reference
from tandem.kernels.hadamard.reference import hadamard
from tandem.loader.base import BlockTensor, TensorSource
from tandem.quant.exl3.format import Exl3Format


class Exl3Linear:
    """y = x · W, with W never formed: scale, rotate, multiply by decoded tiles, rotate, scale.

    A row's bits do not depend on how many rows a call has.
    """

    def __init__(self, description: Exl3Format, source: TensorSource) -> None:
        """Read the matrix. Raises ModelDamagedError if its bytes are not all there or its scales not
        finite.
        """
        self.format = description
        name = description.name
        self.trellis = _read(source, f"{name}.trellis")
        if description.packed_signs:
            self.suh = unpack_signs(_read(source, f"{name}.su"))
            self.svh = unpack_signs(_read(source, f"{name}.sv"))
        else:
            self.suh, self.svh = _read(source, f"{name}.suh"), _read(source, f"{name}.svh")
        self.bias = _read(source, f"{name}.bias").to(torch.float16) if description.has_bias else None
        for scale in (self.suh, self.svh):
            if not scale.isfinite().all():
                raise ModelDamagedError(f"{name} has scales that are not finite", remedy="download it again")

    @property
    def in_features(self) -> int:
        return self.format.in_features

    @property
    def out_features(self) -> int:
        return self.format.out_features

    @property
    def weight_bytes(self) -> int:
        """Bytes in memory."""
        parts = (self.trellis, self.suh, self.svh, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [M, in_features] float32 → [M, out_features] float32."""
        padding = self.format.padded_in - x.shape[1]
        if padding:
            x = torch.nn.functional.pad(x, (0, padding))
        rotated = hadamard(x * self.suh.float(), reference.ROTATION)
        product = cpu.product(rotated, self.trellis, self.format.codebook)
        y = hadamard(product, reference.ROTATION) * self.svh.float()
        if self.bias is not None:
            y = y + self.bias.float()
        return y[:, : self.out_features].contiguous()

    def dense(self) -> torch.Tensor:
        """The matrix in its original basis, float32 [out_features, in_features], without the bias."""
        whole = reference.reconstruct(self.trellis, self.suh, self.svh, self.format.codebook)
        return whole[: self.in_features, : self.out_features].T.contiguous()


def _read(source: TensorSource, name: str) -> torch.Tensor:
    tensor = source.read(name)
    if isinstance(tensor, BlockTensor):
        raise ModelDamagedError(f"{name} must be a plain tensor", found=tensor.dtype)
    return tensor


def unpack_signs(words: torch.Tensor) -> torch.Tensor:
    """Old files' bit fields, int16 [k/16], bit i of a word for value i, as fp16 ±1 [k]."""
    bits = (words.to(torch.int32)[:, None] >> torch.arange(16, device=words.device)) & 1
    return (1.0 - 2.0 * bits.flatten()).to(torch.float16)
