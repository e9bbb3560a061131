"""Safetensors headers, checked before any memory is taken. No torch.

File layout::

    u64 header length N | N bytes of JSON: {name: {dtype, shape, data_offsets: [begin, end)}} | tensor bytes
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.damage import cut_short, likely_cause, read_head, remedy_for
from tandem.core.errors import ModelDamagedError

DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a checkpoint, not yet read."""

    name: str
    dtype: str
    """Safetensors' name, a key of DTYPE_BITS."""
    shape: tuple[int, ...]
    path: Path
    offset_bytes: int
    """From the start of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    path: Path
    tensors: tuple[TensorEntry, ...]
    """In the order of their bytes in the file."""
    metadata: Mapping[str, str]
    file_bytes: int


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check one file's header; the file must be exactly as long as the header says.

    Raises ModelDamagedError naming the file, the expected and the actual size, and the likely cause.
    """
    if not path.is_file():
        raise ModelDamagedError(f"{path} is missing", remedy="download the file again")
    actual = path.stat().st_size
    head = read_head(path)
    length = int.from_bytes(head[:8], "little")
    cause = likely_cause(head)
    if cause or actual < 8 or not 2 <= length <= _MAX_HEADER_BYTES:
        raise ModelDamagedError(
            f"{path} is not a safetensors file",
            found=f"{actual:,} bytes, {cause or 'without a safetensors header'}",
            remedy=remedy_for(head),
        )
    if actual < 8 + length:
        raise cut_short(path, 8 + length, actual)
    with path.open("rb") as file:
        file.seek(8)
        text = file.read(length)
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise TypeError("the header is not a JSON object")
        metadata = header.pop(_METADATA, None) or {}
        tensors = sorted(
            (_entry(path, name, info, 8 + length) for name, info in header.items()),
            key=lambda entry: (entry.offset_bytes, entry.size_bytes),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelDamagedError(
            f"{path} has a damaged safetensors header", found=str(error), remedy=remedy_for(head)
        ) from error
    _check_layout(path, tensors, 8 + length, actual)
    return SafetensorsHeader(path, tuple(tensors), metadata, actual)


def _entry(path: Path, name: str, info: Mapping[str, object], data_start: int) -> TensorEntry:
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"tensor {name} has the unknown type {dtype!r}")
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"tensor {name} has the impossible shape {shape!r}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(isinstance(n, int) for n in offsets):
        raise ValueError(f"tensor {name} has the impossible position {offsets!r}")
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if begin < 0 or (end - begin) * 8 != bits:
        raise ValueError(f"tensor {name}: {dtype} {shape} needs {bits // 8:,} bytes, has {end - begin:,}")
    return TensorEntry(name, dtype, tuple(shape), path, data_start + begin, end - begin)


def _check_layout(path: Path, tensors: list[TensorEntry], data_start: int, actual: int) -> None:
    """Tensors follow each other without gap or overlap and end where the file ends."""
    position = data_start
    for entry in tensors:
        if entry.offset_bytes != position:
            raise ModelDamagedError(
                f"{path} has a damaged safetensors header",
                found=f"tensor {entry.name} starts at byte {entry.offset_bytes:,}, expected {position:,}",
                remedy="download the file again",
            )
        position += entry.size_bytes
    if actual < position:
        raise cut_short(path, position, actual)
    if actual > position:
        raise ModelDamagedError(
            f"{path} is longer than its header says",
            found=f"{actual:,} bytes, expected {position:,}",
            remedy="download the file again",
        )
