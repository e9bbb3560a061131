"""Tensors of a safetensors checkpoint, one or several files, read one at a time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.loader.base import TensorHeader
from tandem.loader.checkpoint import Checkpoint, open_checkpoint
from tandem.loader.header import TensorEntry

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
}  # fmt: skip


class SafetensorsSource:
    """A TensorSource over ``Checkpoint``; torch is imported at the first ``read``."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def open(cls, folder: Path) -> SafetensorsSource:
        """Check every file of the folder first. Raises as ``open_checkpoint`` does."""
        return cls(open_checkpoint(folder))

    def names(self) -> Collection[str]:
        return self.checkpoint.entries.keys()

    def header(self, name: str) -> TensorHeader:
        entry = self.entry(name)
        return TensorHeader(entry.name, entry.dtype, entry.shape, entry.size_bytes)

    def read(self, name: str) -> torch.Tensor:
        from tandem.loader.raw import read_bytes

        entry = self.entry(name)
        dtype = torch_dtype(entry)
        data = read_bytes(entry.path, entry.offset_bytes, entry.size_bytes, name)
        return data.view(dtype).reshape(entry.shape)

    def entry(self, name: str) -> TensorEntry:
        """Where the tensor lies. Raises ModelDamagedError if the checkpoint does not hold it."""
        entry = self.checkpoint.entries.get(name)
        if entry is None:
            raise ModelDamagedError(
                f"The checkpoint in {self.checkpoint.folder} lacks tensor {name}",
                found=f"{len(self.checkpoint.entries)} other tensors",
                remedy="config.json and weights may be of different models: download both from one revision",
            )
        return entry


def torch_dtype(entry: TensorEntry) -> torch.dtype:
    """Raises ModelUnsupportedError for a type that torch does not have."""
    import torch

    if entry.dtype not in _TORCH_NAMES:
        raise ModelUnsupportedError(
            f"Tensor {entry.name} has a type that cannot be read", found=entry.dtype, remedy="another version"
        )
    dtype: torch.dtype = getattr(torch, _TORCH_NAMES[entry.dtype])
    return dtype
