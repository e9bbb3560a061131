"""Bytes of a file into a torch tensor that owns them."""

from __future__ import annotations

from pathlib import Path

import torch

from tandem.core.errors import ModelDamagedError


def read_bytes(path: Path, offset_bytes: int, size_bytes: int, name: str) -> torch.Tensor:
    """uint8 [size_bytes]. Raises ModelDamagedError if the file ended or changed since it was opened."""
    buffer = torch.empty(size_bytes, dtype=torch.uint8)
    read_into(buffer, path, offset_bytes, name)
    return buffer


def read_into(buffer: torch.Tensor, path: Path, offset_bytes: int, name: str) -> None:
    """Fill ``buffer``, uint8 on the CPU. Raises as ``read_bytes`` does."""
    size_bytes = buffer.numel()
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset_bytes)
            view = buffer.numpy().data
            done = 0
            while done < size_bytes:
                count = file.readinto(view[done:])
                if not count:
                    break
                done += count
    except OSError as error:
        raise ModelDamagedError(f"Tensor {name} cannot be read from {path}", found=str(error)) from error
    if done < size_bytes:
        raise ModelDamagedError(
            f"Tensor {name} cannot be read from {path}",
            found=f"the file ends after {done:,} of its {size_bytes:,} bytes",
            remedy="download the file again",
        )
