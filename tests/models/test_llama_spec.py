"""Specifications from config.json and GGUF metadata: what is read, what is refused and by which name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from llama_rig import LlamaRig, open_model
from tiny import TinyLlama, write_tiny_llama

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError, SettingsError
from tandem.core.plan import ModelFootprint
from tandem.loader.base import TensorHeader
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.registry import (
    model_module,
    spec_from_config,
    spec_from_gguf,
    spec_module,
    supported_architectures,
)


def spec_of(tiny: TinyLlama) -> LlamaSpec:
    spec = spec_from_config(tiny.config())
    assert isinstance(spec, LlamaSpec)
    return spec


def headers_of(tiny: TinyLlama) -> dict[str, TensorHeader]:
    names = {torch.float32: "F32", torch.bfloat16: "BF16"}
    return {
        name: TensorHeader(name, names[t.dtype], tuple(t.shape), t.nbytes)
        for name, t in tiny.tensors().items()
    }


def footprint_of(tiny: TinyLlama, headers: dict[str, TensorHeader] | None = None) -> ModelFootprint:
    return spec_module(tiny.architecture).footprint(
        spec_of(tiny), headers or headers_of(tiny), chunk_tokens=64, cache_dtype="fp32"
    )


def test_unknown_architecture_lists_the_known_ones() -> None:
    for ask in (spec_module, model_module):
        with pytest.raises(ModelUnsupportedError, match=r"FooForCausalLM.*LlamaForCausalLM"):
            ask("FooForCausalLM")
    with pytest.raises(ModelUnsupportedError, match="FooForCausalLM"):
        spec_from_config({"architectures": ["FooForCausalLM"]})
    with pytest.raises(ModelUnsupportedError, match="architectures"):
        spec_from_config({"hidden_size": 3})
    with pytest.raises(ModelUnsupportedError, match=r"general\.architecture"):
        spec_from_gguf({})
    assert "Qwen3ForCausalLM" in supported_architectures()


@pytest.mark.parametrize(
    "field",
    [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ],
)
def test_a_missing_or_unusable_field_is_named(field: str) -> None:
    config = TinyLlama().config()
    del config[field]
    with pytest.raises(ModelUnsupportedError, match=rf"{field}.*no such field"):
        spec_from_config(config)
    for value in ("many", -1, True, None, 0):
        with pytest.raises(ModelUnsupportedError, match=field):
            spec_from_config({**config, field: value})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"head_dim": 24}, "head size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"rope_scaling": "twice"}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
    ],
)
def test_what_is_not_served_is_refused_by_name(extra: dict[str, object], named: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=named):
        spec_of(TinyLlama(extra=extra))


def test_old_and_new_rope_fields_read_alike() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 64
    old = TinyLlama(extra={"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})
    new = TinyLlama(extra={"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    assert spec_of(old) == spec_of(new)
    assert spec_of(TinyLlama(extra={"rope_scaling": None})) == spec_of(TinyLlama())


def test_yarn_reaches_its_stretched_context() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert spec_of(TinyLlama(extra={"rope_scaling": scaling})).context_tokens == 4096


def test_windows_per_layer() -> None:
    assert spec_of(TinyLlama("MistralForCausalLM", extra={"sliding_window": 9})).layer_windows == (9, 9, 9)
    assert spec_of(TinyLlama("LlamaForCausalLM", extra={"sliding_window": 9})).layer_windows == (0, 0, 0)
    qwen = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    assert spec_of(TinyLlama("Qwen2ForCausalLM", extra=qwen)).layer_windows == (0, 0, 9)
    qwen["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    assert spec_of(TinyLlama("Qwen2ForCausalLM", extra=qwen)).layer_windows == (9, 0, 9)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_footprint_is_what_is_allocated(
    tmp_path: Path, architecture: str, tied: bool, dtype: torch.dtype
) -> None:
    tiny = TinyLlama(architecture, tied=tied, dtype=dtype, vocab_size=307)
    footprint = footprint_of(tiny)
    path = write_tiny_llama(tmp_path, tiny)
    (whole,) = LlamaRig(path).stages
    parts = sum(footprint.layer_weight_bytes) + footprint.embedding_bytes + footprint.head_bytes
    assert whole.weight_bytes == parts
    first, last = LlamaRig(path, cuts=[1]).stages
    assert first.weight_bytes == footprint.layer_weight_bytes[0] + footprint.embedding_bytes
    copy = footprint.embedding_bytes if tied else 0
    assert last.weight_bytes == sum(footprint.layer_weight_bytes[1:]) + footprint.head_bytes + copy
    tokens = whole.cache.pool.shape[0] * 32  # type: ignore[attr-defined]
    assert whole.cache_bytes == tokens * sum(c.bytes_per_token for c in footprint.layer_cache)


def test_cache_formats() -> None:
    tiny = TinyLlama()
    module = spec_module(tiny.architecture)
    half = module.footprint(spec_of(tiny), headers_of(tiny), chunk_tokens=64, cache_dtype="fp16")
    assert half.layer_cache[0].bytes_per_token * 2 == footprint_of(tiny).layer_cache[0].bytes_per_token
    with pytest.raises(SettingsError, match=r"q5.*fp32, fp16"):
        module.footprint(spec_of(tiny), headers_of(tiny), chunk_tokens=64, cache_dtype="q5")


def test_tensors_are_checked_before_loading() -> None:
    tiny = TinyLlama()
    name = "model.layers.1.mlp.up_proj.weight"
    headers = headers_of(tiny)
    missing = {key: header for key, header in headers.items() if key != name}
    with pytest.raises(ModelDamagedError, match=name):
        footprint_of(tiny, missing)
    wrong = headers | {name: dataclasses.replace(headers[name], shape=(80, 49))}
    with pytest.raises(ModelDamagedError, match=rf"{name}.*\(80, 48\)"):
        footprint_of(tiny, wrong)
    strange = headers | {name: dataclasses.replace(headers[name], dtype="F8_E4M3")}
    with pytest.raises(ModelUnsupportedError, match=rf"{name}.*F8_E4M3"):
        footprint_of(tiny, strange)
    extra = "model.layers.0.self_attn.q_proj.bias"
    with pytest.raises(ModelUnsupportedError, match=extra):
        footprint_of(tiny, headers | {extra: TensorHeader(extra, "F32", (64,), 256)})
    harmless = "model.layers.0.self_attn.rotary_emb.inv_freq"
    footprint_of(tiny, headers | {harmless: TensorHeader(harmless, "F32", (8,), 32)})


GGUF = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 2,
    "qwen3.context_length": 4096,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 96,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": ("a", "b", "c"),
}


def test_gguf_metadata() -> None:
    spec = spec_from_gguf(GGUF)
    assert isinstance(spec, LlamaSpec)
    assert (spec.head_dim, spec.vocab_size, spec.qk_norm, spec.rope.theta) == (32, 3, True, 1e6)
    linear = {"qwen3.rope.scaling.type": "linear", "qwen3.rope.scaling.factor": 4.0}
    assert spec_from_gguf({**GGUF, **linear}).rope.factor == 4.0  # type: ignore[attr-defined]
    yarn = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 4096,
    }
    assert spec_from_gguf({**GGUF, **yarn}).context_tokens == 16384


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen3.block_count", None),
        ("qwen3.attention.head_count_kv", (2, 4)),
        ("qwen3.attention.layer_norm_rms_epsilon", None),
        ("qwen3.rope.scaling.type", "longrope"),
        ("qwen3.expert_count", 8),
    ],
)
def test_gguf_keys_are_named(key: str, value: object) -> None:
    factor = {"qwen3.rope.scaling.factor": 2.0}
    with pytest.raises(ModelUnsupportedError, match=key.removeprefix("qwen3.")):
        spec_from_gguf({**GGUF, **factor, key: value})


def test_specifications_need_no_torch() -> None:
    code = (
        "import sys; from tandem.models.registry import spec_module; spec_module('LlamaForCausalLM');"
        "sys.exit('torch' in sys.modules or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rig_opens_both_kinds(tmp_path: Path) -> None:
    spec, weights = open_model(write_tiny_llama(tmp_path))
    assert spec.num_layers == 3
    assert np.prod(weights.header("model.norm.weight").shape) == 48
