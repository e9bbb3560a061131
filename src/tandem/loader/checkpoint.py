"""A safetensors checkpoint in a folder: one file, or shards with an index. No torch.

Every shard's header is checked when a checkpoint is opened, so that a missing, cut or swapped file is named
before any memory is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.damage import likely_cause, read_head, remedy_for
from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError
from tandem.loader.header import TensorEntry, read_header

INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5", "*.onnx")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a folder by name, none of them read."""

    folder: Path
    entries: Mapping[str, TensorEntry]
    files: tuple[Path, ...]

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries.values())


def open_checkpoint(folder: Path) -> Checkpoint:
    """Check every safetensors file of the folder and list its tensors.

    Raises ModelNotFoundError (no weights here), ModelUnsupportedError (weights of another format) or
    ModelDamagedError (missing or damaged shard, a tensor twice, an index that does not match).
    """
    index = _read_index(folder / INDEX_NAME)
    files = _indexed_files(folder, index) if index else _unindexed_files(folder)
    entries: dict[str, TensorEntry] = {}
    for path in files:
        for entry in read_header(path).tensors:
            other = entries.get(entry.name)
            if other is not None:
                raise ModelDamagedError(
                    f"Tensor {entry.name} occurs twice",
                    found=f"in {other.path.name} and in {path.name} of {folder}",
                    remedy="remove the file that does not belong to this checkpoint",
                )
            entries[entry.name] = entry
    if index:
        _check_index(folder, index, entries)
    return Checkpoint(folder, entries, files)


def _read_index(path: Path) -> dict[str, str] | None:
    if not path.is_file():
        return None
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        if not isinstance(weight_map, dict) or not weight_map:
            raise TypeError("weight_map is not a filled object")
    except (ValueError, TypeError, KeyError) as error:
        head = read_head(path)
        raise ModelDamagedError(
            f"{path} is not a safetensors index",
            found=likely_cause(head) or f"{type(error).__name__}: {error}",
            remedy=remedy_for(head),
        ) from error
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelDamagedError(f"{path} sends tensor {tensor} to an impossible file", found=repr(name))
    return weight_map


def _indexed_files(folder: Path, index: Mapping[str, str]) -> tuple[Path, ...]:
    files = tuple(folder / name for name in sorted(set(index.values())))
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise _missing_shards(folder, missing, len(files), f"{INDEX_NAME} lists it")
    return files


def _unindexed_files(folder: Path) -> tuple[Path, ...]:
    single = folder / _SINGLE_NAME
    if single.is_file():
        return (single,)
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise _no_weights(folder)
    matches = [match for match in map(_SHARD_NAME.fullmatch, (path.name for path in found)) if match]
    for stem, count in {(match["stem"], match["count"]) for match in matches}:
        expected = [folder / f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1)]
        missing = [path for path in expected if not path.is_file()]
        if missing:
            raise _missing_shards(folder, missing, len(expected), "its siblings' names count it")
    return tuple(found)


def _check_index(folder: Path, index: Mapping[str, str], entries: Mapping[str, TensorEntry]) -> None:
    for tensor, name in index.items():
        entry = entries.get(tensor)
        if entry is None or entry.path.name != name:
            raise ModelDamagedError(
                f"{folder / name} lacks tensor {tensor}, which {INDEX_NAME} promises",
                found="no such tensor in any file" if entry is None else f"it is in {entry.path.name}",
                remedy="download index and shards again, from one revision",
            )


def _missing_shards(folder: Path, missing: list[Path], total: int, why: str) -> ModelDamagedError:
    names = ", ".join(path.name for path in missing[:3]) + (" …" if len(missing) > 3 else "")
    partial = any(folder.rglob("*.incomplete"))
    return ModelDamagedError(
        f"{folder} lacks {len(missing)} of {total} weight files: {names}",
        found=f"not there, though {why}" + ("; an unfinished download lies beside it" if partial else ""),
        remedy="finish the download" if partial else "download the missing files",
    )


def _no_weights(folder: Path) -> ModelNotFoundError | ModelUnsupportedError:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return ModelNotFoundError(
            f"{folder} holds no safetensors", found=f"{ggufs[0].name}", remedy=f"--model {ggufs[0]}"
        )
    others = sorted(path.name for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
    if others:
        return ModelUnsupportedError(
            f"{folder} holds no safetensors",
            found=others[0],
            remedy="use a safetensors version of this model",
        )
    return ModelNotFoundError(
        f"{folder} holds no weights",
        found="no *.safetensors file",
        remedy="check the folder; for a model on the hub check the revision (weights may be on a branch)",
    )
