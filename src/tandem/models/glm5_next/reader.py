"""Reads a checkpoint's tensors into linear layers, norms and arrays, and counts what they take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.core.errors import ModelDamagedError
from tandem.layers.linear import Linear
from tandem.layers.norm import RMSNorm
from tandem.layers.operator import Operator
from tandem.loader.base import BlockTensor, TensorSource
from tandem.models.glm5_next.tensors import Names
from tandem.quant.exl3.format import is_exl3, read_format
from tandem.quant.exl3.linear import Exl3Linear
from tandem.quant.tiles import tile


@dataclass(frozen=True, slots=True)
class OnTensors:
    """A layer over arrays, called with tensors that share their memory."""

    layer: Linear | RMSNorm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.layer.forward(x.contiguous().numpy()))


class Reader:
    """One stage's way to its weights. Every tensor given out counts into ``weight_bytes``."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self.headers = {name: source.header(name) for name in source.names()}
        self.names = Names.of(self.headers)
        self.weight_bytes = 0

    def linear(self, name: str, in_features: int, out_features: int) -> Operator:
        """The matrix ``name``, in whatever format the checkpoint has it."""
        if not is_exl3(name, self.headers):
            return self.keep_dense(name, self.stored(f"{name}.weight"))
        linear = Exl3Linear(read_format(name, self.headers, in_features, out_features), self._source)
        self.weight_bytes += linear.weight_bytes
        return linear

    def raw_linear(self, name: str) -> Operator:
        """The tensor ``name`` itself is a matrix [out, in]."""
        return self.keep_dense(name, self.stored(name))

    def dense(self, name: str, in_features: int, out_features: int) -> torch.Tensor:
        """The matrix [out, in] itself, for a layer that takes it apart. Not counted."""
        if not is_exl3(name, self.headers):
            return self.stored(f"{name}.weight")
        return Exl3Linear(read_format(name, self.headers, in_features, out_features), self._source).dense()

    def keep_dense(self, name: str, weight: torch.Tensor) -> Operator:
        """A linear layer of a matrix [out, in], kept in its own type. ``name`` is for error messages."""
        linear = Linear(tile({name: weight}))
        self.weight_bytes += linear.weight_bytes
        return OnTensors(linear)

    def norm(self, name: str, eps: float) -> Operator:
        """Root-mean-square normalisation with the weight ``name``."""
        return OnTensors(RMSNorm(self.array(name).numpy(), eps))

    def array(self, name: str) -> torch.Tensor:
        """The tensor as float32."""
        array = self.stored(name).float()
        self.weight_bytes += array.nbytes
        return array

    def table(self, name: str) -> torch.Tensor:
        """The tensor in its stored type."""
        table = self.stored(name)
        self.weight_bytes += table.nbytes
        return table

    def stored(self, name: str) -> torch.Tensor:
        """The tensor as it is in the file. Not counted."""
        tensor = self._source.read(name)
        if isinstance(tensor, BlockTensor):
            raise ModelDamagedError(f"{name} must be a plain tensor", found=tensor.dtype)
        return tensor
