"""GGUF headers: the metadata and where each tensor lies, without touching a tensor.

Text and loader both need it. Written out here because a vocabulary of 50,000 strings takes about three
seconds to read through numpy views one by one, and 50 ms this way.

File layout (little-endian)::

    magic "GGUF" | u32 version | u64 tensor count | u64 key count | keys … | tensor infos … | pad | tensors
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.damage import likely_cause, remedy_for
from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError

GgufValue = int | float | bool | str | tuple["GgufValue", ...]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9
_MAX_NESTING = 4
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """``shape`` is row-major as in torch (the file lists it innermost first)."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    """GGML's number of the element or block type."""
    offset_bytes: int
    """From the start of the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: tuple[GgufTensor, ...]
    file_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of one GGUF file (versions 2 and 3).

    Raises ModelNotFoundError, ModelDamagedError (not a GGUF file, cut short inside the header) or
    ModelUnsupportedError (other version, byte order, or one part of a split model).
    """
    if not path.is_file():
        raise ModelNotFoundError(f"No GGUF file at {path}", remedy="check the path")
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(512)
        if head[:4] != b"GGUF":
            raise ModelDamagedError(
                f"{path} is not a GGUF file",
                found=likely_cause(head) or f"{file_bytes:,} bytes that start with {head[:4]!r}",
                remedy=remedy_for(head),
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(path, data, file_bytes)
            except (struct.error, IndexError, ValueError, OverflowError) as error:
                raise ModelDamagedError(
                    f"{path} is cut short or damaged inside its header",
                    found=f"{file_bytes:,} bytes, no readable header in them",
                    remedy=remedy_for(head),
                ) from error


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = 4

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self.offset)[0]
        self.offset += 4
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self.offset)[0]
        self.offset += 8
        return value

    def strings(self, count: int) -> list[str]:
        data, offset, size, unpack = self.data, self.offset, len(self.data), _U64.unpack_from
        result = []
        for _ in range(count):
            start = offset + 8
            offset = start + unpack(data, offset)[0]
            if offset > size:
                raise ValueError("a string runs past the end of the file")
            result.append(data[start:offset].decode("utf-8", "replace"))
        self.offset = offset
        return result

    def scalars(self, code: str, count: int) -> tuple[GgufValue, ...]:
        size = struct.calcsize(f"<{code}") * count
        if self.offset + size > len(self.data):
            raise ValueError("an array runs past the end of the file")
        values = struct.unpack_from(f"<{count}{code}", self.data, self.offset)
        self.offset += size
        return values

    def value(self, kind: int, depth: int = 0) -> GgufValue:
        if kind == _STRING:
            return self.strings(1)[0]
        if kind != _ARRAY:
            return self.scalars(_scalar_code(kind), 1)[0]
        if depth == _MAX_NESTING:
            raise ValueError("arrays are nested too deeply")
        element, count = self.u32(), self.u64()
        if element == _STRING:
            return tuple(self.strings(count))
        if element == _ARRAY:
            return tuple(self.value(_ARRAY, depth + 1) for _ in range(count))
        return self.scalars(_scalar_code(element), count)


def _scalar_code(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"value type {kind} is not defined")
    return _SCALARS[kind]


def _parse(path: Path, data: mmap.mmap, file_bytes: int) -> GgufHeader:
    cursor = _Cursor(data)
    version = cursor.u32()
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "big-endian" if swapped in (2, 3) else f"version {version}"
        raise ModelUnsupportedError(
            f"{path} cannot be read", found=f"a {kind} GGUF file", remedy="use a little-endian version 2 or 3"
        )
    tensor_count, key_count = cursor.u64(), cursor.u64()
    metadata = {}
    for _ in range(key_count):
        key = cursor.strings(1)[0]
        metadata[key] = cursor.value(cursor.u32())
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ModelUnsupportedError(
            f"{path} is one part of a split model",
            found=f"{parts} parts",
            remedy="merge the parts into one file first (llama-gguf-split --merge)",
        )
    infos = []
    for _ in range(tensor_count):
        name = cursor.strings(1)[0]
        dimensions = cursor.u32()
        shape = tuple(reversed([cursor.u64() for _ in range(dimensions)]))
        infos.append((name, shape, cursor.u32(), cursor.u64()))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError("general.alignment is not a positive number")
    start = math.ceil(cursor.offset / alignment) * alignment
    tensors = tuple(
        GgufTensor(name, shape, type_id, start + offset) for name, shape, type_id, offset in infos
    )
    return GgufHeader(path, metadata, tensors, file_bytes)
