"""Safetensors checkpoints: whole ones read exactly, damaged ones named before any memory is taken."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError, UserError
from tandem.loader.checkpoint import INDEX_NAME, open_checkpoint
from tandem.loader.header import read_header
from tandem.loader.safetensors import SafetensorsSource

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16,
)  # fmt: skip


def shard(number: int, count: int = 3) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def write_sharded(folder: Path, *, with_index: bool = True) -> dict[str, torch.Tensor]:
    """Three shards of two tensors each."""
    folder.mkdir(exist_ok=True)
    tensors = {f"layers.{n}.weight": torch.randn(5, 3 + n) for n in range(6)}
    weight_map = {name: shard(1 + n // 2) for n, name in enumerate(tensors)}
    for number in (1, 2, 3):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard(number)}
        save_file(part, folder / shard(number), metadata={"format": "pt"})
    if with_index:
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / INDEX_NAME).write_text(json.dumps(index))
    return tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.randint(
        0, 2 if dtype == torch.bool else 256, (7, 5 * torch.empty(0, dtype=dtype).element_size())
    )
    tensor = raw.to(torch.uint8).view(dtype)
    save_file(
        {"w": tensor, "empty": tensor[:0], "scalar": tensor[0, 0].clone()}, tmp_path / "model.safetensors"
    )
    source = SafetensorsSource.open(tmp_path)
    for name, expected in (("w", tensor), ("empty", tensor[:0]), ("scalar", tensor[0, 0])):
        found = source.read(name)
        assert found.dtype == dtype
        assert found.shape == expected.shape == torch.Size(source.header(name).shape)
        assert found.contiguous().view(-1).view(torch.uint8).tolist() == (
            expected.contiguous().view(-1).view(torch.uint8).tolist()
        )
        assert source.header(name).stored_bytes == expected.numel() * expected.element_size()


def test_a_read_tensor_owns_its_memory(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "model.safetensors")
    source = SafetensorsSource.open(tmp_path)
    source.read("w").zero_()
    assert source.read("w").tolist() == [1.0] * 4


@pytest.mark.parametrize("with_index", [True, False])
def test_shards_are_one_checkpoint(tmp_path: Path, with_index: bool) -> None:
    tensors = write_sharded(tmp_path, with_index=with_index)
    source = SafetensorsSource.open(tmp_path)
    assert set(source.names()) == set(tensors)
    assert all(torch.equal(source.read(name), tensor) for name, tensor in tensors.items())
    assert source.checkpoint.total_bytes == sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, with_index: bool) -> None:
    write_sharded(tmp_path, with_index=with_index)
    (tmp_path / shard(3)).unlink()
    with pytest.raises(ModelDamagedError, match=rf"lacks 1 of 3 weight files: {shard(3)}"):
        open_checkpoint(tmp_path)


def test_an_unfinished_download_is_told_from_a_missing_file(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / shard(2)).rename(tmp_path / (shard(2) + ".incomplete"))
    with pytest.raises(ModelDamagedError, match=r"an unfinished download lies beside it; try: finish"):
        open_checkpoint(tmp_path)


def test_an_index_entry_without_a_tensor_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    index["weight_map"]["layers.9.weight"] = shard(2)
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelDamagedError, match=rf"{shard(2)} lacks tensor layers\.9\.weight"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_the_wrong_shard_is_caught(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    index["weight_map"]["layers.0.weight"] = shard(2)
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelDamagedError, match=rf"layers\.0\.weight.*found: it is in {shard(1)}"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_files_is_caught(tmp_path: Path) -> None:
    tensors = write_sharded(tmp_path)
    save_file(
        {"layers.5.weight": tensors["layers.5.weight"], "layers.0.weight": torch.ones(2)}, tmp_path / shard(3)
    )
    with pytest.raises(ModelDamagedError, match=rf"layers\.0\.weight occurs twice; found: in {shard(1)} and"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4998000000\n",
         r"Git LFS pointer, not the file itself \(which has 4,998,000,000 bytes\); try: run `git lfs pull`"),
        (b"\n<!DOCTYPE html><html>Sign in</html>", r"a web page saved in its place"),
        (b"", r"0 bytes, an empty file"),
        (b"\0" * 5000, r"5,000 bytes, zero bytes: space was reserved"),
        (b"\x07\x00\x00", r"3 bytes, without a safetensors header"),
        (b"PK\x03\x04" + b"x" * 300, r"304 bytes, without a safetensors header"),
        (struct.pack("<Q", 2**62) + b"{}", r"without a safetensors header"),
        (struct.pack("<Q", 5000) + b"{}", r"is cut short; found: 10 bytes, expected 5,008"),
        (struct.pack("<Q", 2) + b"[]", r"damaged safetensors header"),
        (struct.pack("<Q", 4) + b"nope", r"damaged safetensors header"),
    ],
)  # fmt: skip
def test_what_is_not_a_safetensors_file_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelDamagedError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert str(path) in str(caught.value)


def test_one_byte_less_and_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(10, 10)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        ModelDamagedError, match=rf"is cut short; found: {len(whole) - 1:,} bytes, expected {len(whole):,}"
    ):
        open_checkpoint(tmp_path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ModelDamagedError, match=r"is longer than its header says"):
        open_checkpoint(tmp_path)


def forged(**info: object) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **info}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 8


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"dtype": "F12"}, "unknown type 'F12'"),
        ({"shape": [3]}, "needs 12 bytes, has 8"),
        ({"shape": [-2]}, "impossible shape"),
        ({"shape": "2"}, "impossible shape"),
        ({"data_offsets": [8, 0]}, "needs 8 bytes, has -8"),
        ({"data_offsets": [0]}, "impossible position"),
        ({"data_offsets": [4, 12]}, "starts at byte"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(
    tmp_path: Path, info: dict[str, object], message: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(forged(**info))
    with pytest.raises(ModelDamagedError, match=message):
        read_header(path)


@settings(max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=64), prefix=st.sampled_from([b"", struct.pack("<Q", 20), forged()[:90]]))
def test_any_bytes_are_read_or_refused_in_our_words(tmp_path: Path, content: bytes, prefix: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(prefix + content)
    refusal = str(path)
    try:
        read_header(path)
    except UserError as error:
        refusal = str(error)
    assert str(path) in refusal


def test_a_file_that_shrinks_after_opening_is_caught_when_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(100)}, path)
    source = SafetensorsSource.open(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelDamagedError, match=r"Tensor w cannot be read.*after 360 of its 400 bytes"):
        source.read("w")


def test_an_unknown_tensor_and_an_unreadable_type(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(forged(dtype="F4", shape=[16]))
    source = SafetensorsSource.open(tmp_path)
    with pytest.raises(ModelUnsupportedError, match="F4"):
        source.read("w")
    with pytest.raises(ModelDamagedError, match=r"lacks tensor missing\.weight"):
        source.header("missing.weight")


@pytest.mark.parametrize("content", ["", "[]", '{"weight_map": {}}', '{"weight_map": 3}', "<html>"])
def test_a_damaged_index_is_named(tmp_path: Path, content: str) -> None:
    write_sharded(tmp_path)
    (tmp_path / INDEX_NAME).write_text(content)
    with pytest.raises(ModelDamagedError, match="is not a safetensors index"):
        open_checkpoint(tmp_path)


def test_an_index_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text('{"weight_map": {"w": "../secret.safetensors"}}')
    with pytest.raises(ModelDamagedError, match="impossible file"):
        open_checkpoint(tmp_path)


def test_folders_without_safetensors_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="holds no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelUnsupportedError, match=r"found: pytorch_model\.bin"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"--model .*model\.gguf"):
        open_checkpoint(tmp_path)
