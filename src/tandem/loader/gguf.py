"""Tensors of one GGUF file, read one at a time; block types stay as they lie in the file."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tandem.core.damage import cut_short
from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.core.gguf import GgufHeader, GgufTensor, GgufValue, read_gguf_header
from tandem.loader.base import BlockTensor, TensorHeader

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
}  # fmt: skip


class GgufSource:
    """A TensorSource over one GGUF file; torch is imported at the first ``read``."""

    def __init__(self, header: GgufHeader) -> None:
        self.path = header.path
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._headers = {tensor.name: _describe(header.path, tensor) for tensor in header.tensors}
        self._metadata = header.metadata
        if len(self._tensors) < len(header.tensors):
            raise ModelDamagedError(f"{header.path} holds a tensor twice", remedy="download the file again")
        expected = max(
            (tensor.offset_bytes + self._headers[tensor.name].stored_bytes for tensor in header.tensors),
            default=0,
        )
        if expected > header.file_bytes:
            raise cut_short(header.path, expected, header.file_bytes)

    @classmethod
    def open(cls, path: Path) -> GgufSource:
        """Check header and size first. Raises as ``read_gguf_header`` does, or ModelDamagedError."""
        return cls(read_gguf_header(path))

    @property
    def metadata(self) -> Mapping[str, GgufValue]:
        return self._metadata

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def header(self, name: str) -> TensorHeader:
        if name not in self._headers:
            raise ModelDamagedError(
                f"{self.path} lacks tensor {name}",
                found=f"{len(self._headers)} other tensors",
                remedy="use a GGUF file made by a current converter",
            )
        return self._headers[name]

    def read(self, name: str) -> torch.Tensor | BlockTensor:
        import torch

        from tandem.loader.raw import read_bytes

        header = self.header(name)
        data = read_bytes(self.path, self._tensors[name].offset_bytes, header.stored_bytes, name)
        if header.dtype in _TORCH_NAMES:
            dtype: torch.dtype = getattr(torch, _TORCH_NAMES[header.dtype])
            return data.view(dtype).reshape(header.shape)
        rows = math.prod(header.shape[:-1])
        return BlockTensor(header.dtype, header.shape, data.reshape(rows, -1))


def _describe(path: Path, tensor: GgufTensor) -> TensorHeader:
    try:
        kind = GGMLQuantizationType(tensor.type_id)
    except ValueError:
        raise ModelUnsupportedError(
            f"Tensor {tensor.name} of {path} has an unknown type", found=f"GGML type {tensor.type_id}"
        ) from None
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    row = tensor.shape[-1] if tensor.shape else 1
    if row % block_elements:
        raise ModelDamagedError(
            f"Tensor {tensor.name} of {path} cannot be {kind.name}",
            found=f"rows of {row} elements, blocks of {block_elements}",
        )
    return TensorHeader(
        tensor.name, kind.name, tensor.shape, math.prod(tensor.shape) // block_elements * block_bytes
    )
