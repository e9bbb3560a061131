"""GGUF files: headers and tensors equal to the format's own package; damage is one clear error."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.core.errors import ModelDamagedError, ModelNotFoundError, ModelUnsupportedError, UserError
from tandem.core.gguf import read_gguf_header
from tandem.loader.base import BlockTensor
from tandem.loader.gguf import GgufSource

TOKENS = ["a", "é", "日本", "", "<|im_end|>"]


def write_gguf(path: Path, **extra: int) -> dict[str, np.ndarray]:
    """A small file with every kind of metadata and some block types; returns the tensors' bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", TOKENS)
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 1, 6, 3])
    writer.add_array("scores", [0.5, -1.5])
    for key, value in extra.items():
        writer.add_uint16(key.replace("_", "."), value)
    random = np.random.default_rng(0)
    stored = {}
    for kind in (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_1, Kind.Q8_0):
        data = quantize(random.standard_normal((6, 64), dtype=np.float32), kind)
        stored[f"{kind.name}.weight"] = data
        writer.add_tensor(f"{kind.name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def raw_bytes(tensor: torch.Tensor | BlockTensor) -> bytes:
    data = tensor.data if isinstance(tensor, BlockTensor) else tensor
    return data.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_metadata_and_tensors_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    stored = write_gguf(path)
    source = GgufSource.open(path)
    assert source.metadata["general.architecture"] == "llama"
    assert source.metadata["llama.block_count"] == 2
    assert source.metadata["tokenizer.ggml.add_bos_token"] is True
    assert source.metadata["tokenizer.ggml.tokens"] == tuple(TOKENS)
    assert source.metadata["tokenizer.ggml.token_type"] == (1, 1, 1, 6, 3)
    assert source.metadata["scores"] == (0.5, -1.5)
    assert set(source.names()) == set(stored)
    for name, data in stored.items():
        header, tensor = source.header(name), source.read(name)
        assert (header.shape, header.dtype) == ((6, 64), name.partition(".")[0])
        assert header.stored_bytes == data.nbytes
        assert raw_bytes(tensor) == data.tobytes()
        assert isinstance(tensor, BlockTensor) == header.dtype.startswith("Q")
        if isinstance(tensor, BlockTensor):
            assert tensor.data.shape == (6, data.nbytes // 6)


@pytest.mark.demo
def test_the_demo_model_is_whole(demo_gguf: Path) -> None:
    source = GgufSource.open(demo_gguf)
    assert len(source.metadata["tokenizer.ggml.tokens"]) == 49152  # type: ignore[arg-type]
    assert len(source.names()) == 2 + 9 * 30
    embedding = source.read("token_embd.weight")
    assert isinstance(embedding, BlockTensor)
    assert (embedding.dtype, embedding.shape, tuple(embedding.data.shape)) == (
        "Q8_0",
        (49152, 576),
        (49152, 612),
    )


def test_a_file_cut_by_one_byte_names_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    data = path.read_bytes()
    source = GgufSource.open(path)
    end = max(
        source._tensors[name].offset_bytes + source.header(name).stored_bytes for name in source.names()
    )
    path.write_bytes(data[: end - 1])
    with pytest.raises(ModelDamagedError, match=rf"is cut short; found: {end - 1:,} bytes, expected {end:,}"):
        GgufSource.open(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    data = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(data) - 32, 37):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelDamagedError, match=r"cut\.gguf"):
            GgufSource.open(cut)


@settings(max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(4, 900), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused_in_our_words(tmp_path: Path, position: int, value: int) -> None:
    whole = tmp_path / "tiny.gguf"
    if not whole.exists():
        write_gguf(whole)
    data = bytearray(whole.read_bytes())
    data[position] = value
    path = tmp_path / "changed.gguf"
    path.write_bytes(data)
    refusal = str(path)
    try:
        GgufSource.open(path)
    except UserError as error:
        refusal = str(error)
    assert str(path) in refusal


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\nsize 98362432\n", r"Git LFS pointer.*98,362,432"),
        (b"<html>", "a web page"),
        (b"", "an empty file"),
        (b"GGML....", "8 bytes that start with b'GGML'"),
    ],
)
def test_what_is_not_gguf_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelDamagedError, match=message):
        read_gguf_header(path)


def test_other_versions_byte_orders_and_parts_are_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, split_count=3)
    with pytest.raises(ModelUnsupportedError, match="one part of a split model; found: 3 parts"):
        read_gguf_header(path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + (1).to_bytes(4, "little") + data[8:])
    with pytest.raises(ModelUnsupportedError, match="a version 1 GGUF file"):
        read_gguf_header(path)
    path.write_bytes(data[:4] + (3).to_bytes(4, "big") + data[8:])
    with pytest.raises(ModelUnsupportedError, match="a big-endian GGUF file"):
        read_gguf_header(path)


def test_a_missing_file_and_a_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="No GGUF file"):
        read_gguf_header(tmp_path / "nowhere.gguf")
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    with pytest.raises(ModelDamagedError, match=r"lacks tensor blk\.0"):
        GgufSource.open(path).header("blk.0.attn_q.weight")
