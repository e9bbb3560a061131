"""What a CUDA card cannot compute is refused from headers, by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tandem.core.errors import ModelUnsupportedError, SettingsError
from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.cuda_limits import cache_is_eight_bit, check_dimensions, check_formats
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import RELEASED, SMALL, SMALL_BITS

BASE = "model.language_model.layers.2.self_attn"


@pytest.fixture
def headers() -> dict[str, TensorHeader]:
    source = RandomCheckpoint(SMALL, SMALL_BITS, torch.device("cpu"))
    return {name: source.header(name) for name in source.names()}


def check(headers: dict[str, TensorHeader]) -> None:
    check_formats(SMALL, headers, range(SMALL.num_layers), has_head=True)


def as_plain(headers: dict[str, TensorHeader], name: str) -> None:
    trellis = headers.pop(f"{name}.trellis")
    for part in ("suh", "svh", "mul1"):
        del headers[f"{name}.{part}"]
    shape = (16 * trellis.shape[1], 16 * trellis.shape[0])
    headers[f"{name}.weight"] = TensorHeader(f"{name}.weight", "BF16", shape, 2 * shape[0] * shape[1])


def test_the_released_model_and_the_small_one_are_computed(headers: dict[str, TensorHeader]) -> None:
    check_dimensions(RELEASED)
    check_dimensions(SMALL)
    check(headers)


@pytest.mark.parametrize(
    "name", ["lm_head", f"{BASE}.o_proj", "model.language_model.layers.1.mlp.experts.3.up_proj"]
)
def test_any_large_matrix_may_be_plain(headers: dict[str, TensorHeader], name: str) -> None:
    as_plain(headers, name)
    check(headers)


def test_an_exl3_matrix_that_the_kernels_want_plain_is_named(headers: dict[str, TensorHeader]) -> None:
    weight = headers.pop(f"{BASE}.kv_b_proj.weight")
    shape = (weight.shape[1] // 16, weight.shape[0] // 16, 48)
    headers[f"{BASE}.kv_b_proj.trellis"] = TensorHeader(f"{BASE}.kv_b_proj.trellis", "I16", shape, 0)
    with pytest.raises(ModelUnsupportedError, match=rf"{BASE}.kv_b_proj cannot.*EXL3.*--cards cpu"):
        check(headers)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"streams": 2}, "residual streams"),
        ({"conv_taps": 3}, "convolution taps"),
        ({"hidden_size": 576}, "hidden size"),
        ({"kv_lora_rank": 384}, "latent size"),
        ({"experts_per_token": 16}, "number of experts"),
    ],
)
def test_a_dimension_out_of_reach_is_named(change: dict[str, int], name: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=name):
        check_dimensions(dataclasses.replace(SMALL, **change))


def test_sizes_of_experts_and_of_the_vocabulary_are_free() -> None:
    check_dimensions(dataclasses.replace(SMALL, expert_intermediate_size=200, vocab_size=1001))


def test_caches_of_a_card() -> None:
    assert cache_is_eight_bit("q8")
    assert not cache_is_eight_bit("fp16")
    with pytest.raises(SettingsError, match=r"fp32.*--kv fp16 or --kv q8"):
        cache_is_eight_bit("fp32")
