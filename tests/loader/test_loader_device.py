"""Layers read ahead in pieces through few buffers: every bit, every order, every damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tandem.core.errors import ModelDamagedError
from tandem.loader import device as device_module
from tandem.loader.checkpoint import INDEX_NAME
from tandem.loader.device import DeviceSource
from tandem.loader.safetensors import SafetensorsSource

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a few hundred bytes then are larger than a buffer, and gaps larger than is worth reading."""
    monkeypatch.setattr(device_module, "BUFFER_BYTES", 300)
    monkeypatch.setattr(device_module, "_LARGEST_GAP_BYTES", 64)


def layer_tensors(layer: int) -> dict[str, torch.Tensor]:
    base = f"model.layers.{layer}"
    return {
        f"{base}.a.trellis": torch.randint(-(2**15), 2**15, (4, 4, 48), dtype=torch.int16),
        f"{base}.a.suh": torch.randn(64).half(),
        f"{base}.a.mul1": torch.tensor(layer, dtype=torch.int32),
        f"{base}.b.trellis": torch.randint(-(2**15), 2**15, (2, 4, 32), dtype=torch.int16),
        f"{base}.norm.weight": torch.randn(7).bfloat16(),
        f"{base}.empty": torch.empty(0, 3),
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Three layers, the middle one over both files, a table and a picture nobody asks for."""
    layers = [layer_tensors(layer) for layer in range(3)]
    cut = dict(list(layers[1].items())[:3])
    first = {"model.embed_tokens.weight": torch.randn(50, 9), **layers[0], **cut}
    second = {"model.visual.picture": torch.randn(40), **layers[2]}
    second |= {name: tensor for name, tensor in layers[1].items() if name not in cut}
    for number, part in ((1, first), (2, second)):
        save_file(part, tmp_path / f"model-0000{number}-of-00002.safetensors")
    weight_map = {
        name: f"model-0000{n}-of-00002.safetensors" for n, p in ((1, first), (2, second)) for name in p
    }
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return first | second


@pytest.fixture
def arrived() -> list[int]:
    return []


@pytest.fixture
def source(tmp_path: Path, checkpoint: dict[str, torch.Tensor], arrived: list[int]) -> Iterator[DeviceSource]:
    opened = SafetensorsSource.open(tmp_path)
    with DeviceSource(opened, CPU, end_layer=3, arrived=arrived.append) as reading:
        yield reading


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


def test_every_tensor_comes_back_bit_for_bit(source, checkpoint, arrived):
    assert set(source.names()) == set(checkpoint)
    wanted = [name for name in checkpoint if "visual" not in name]
    for name in sorted(wanted, reverse=True):
        assert source.header(name).shape == tuple(checkpoint[name].shape)
        assert same(source.read(name), checkpoint[name]), name
    assert sum(arrived) == sum(checkpoint[name].nbytes for name in wanted)


def test_a_layer_is_read_whole_and_the_next_one_ahead(source, checkpoint, arrived):
    source.read("model.layers.0.norm.weight")
    for read in source._layers["model.layers.1."].reads:
        read.result()
    assert "model.layers.2." not in source._layers
    expected = sum(
        checkpoint[name].nbytes for name in checkpoint if "layers.0." in name or "layers.1." in name
    )
    assert sum(arrived) == expected


def test_layers_of_other_cards_are_not_read(tmp_path, checkpoint, arrived):
    with DeviceSource(SafetensorsSource.open(tmp_path), CPU, end_layer=2, arrived=arrived.append) as source:
        for layer in (0, 1):
            source.read(f"model.layers.{layer}.norm.weight")
        assert set(source._layers) == {"model.layers.0.", "model.layers.1."}


def test_quantized_matrices_of_a_layer_share_aligned_memory(source):
    a, b = (source.read(f"model.layers.0.{name}.trellis") for name in "ab")
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert (b.data_ptr() - a.data_ptr()) % 256 == 0
    suh = source.read("model.layers.0.a.suh")
    assert suh.untyped_storage().nbytes() == suh.nbytes


def test_a_file_cut_short_while_it_is_read_is_named(tmp_path, source):
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(ModelDamagedError, match=r"cannot be read from .*model-00002.*the file ends after"):
        [source.read(name) for layer in (1, 2) for name in layer_tensors(layer)]


def test_a_tensor_that_is_not_there_is_named(source):
    with pytest.raises(ModelDamagedError, match=r"lacks tensor lm_head\.trellis"):
        source.read("lm_head.trellis")
