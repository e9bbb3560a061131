"""What a checkpoint must hold, what is refused by name before any memory is taken, and the bytes declared."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.core.plan import ModelFootprint
from tandem.loader.safetensors import SafetensorsSource
from tandem.models import registry
from tandem.models.glm5_next.spec import footprint, from_config, from_gguf

from .golden import MODELS, checkpoint_folder
from .rig import PAGE_TOKENS, build_stages, read_spec
from .tiny import Oracle, text_config

PREFIX = "model.language_model.layers"
Edit = Callable[[dict[str, torch.Tensor]], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Oracle(text_config(), seed=3).save(tmp_path_factory.mktemp("glm"))


def edited(whole: Path, folder: Path, edit: Edit) -> Path:
    tensors = load_file(whole / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((whole / "config.json").read_text())
    return folder


def read_footprint(folder: Path, cache: str = "fp32") -> ModelFootprint:
    source = SafetensorsSource.open(folder)
    headers = {name: source.header(name) for name in source.names()}
    return footprint(read_spec(folder), headers, chunk_tokens=64, cache_dtype=cache)


def declared_cache_bytes(found: ModelFootprint, layers: range, pages: int, slots: int) -> float:
    caches = [found.layer_cache[layer] for layer in layers]
    tokens = pages * PAGE_TOKENS
    return sum(c.bytes_per_token * tokens + c.bytes_per_sequence * slots for c in caches)


@pytest.mark.parametrize("cache", ["fp32", "fp16", "q8"])
@pytest.mark.parametrize("cut", [None, 2])
def test_what_is_declared_is_allocated(whole: Path, cache: str, cut: int | None) -> None:
    found = read_footprint(whole, cache)
    cuts = () if cut is None else (cut,)
    stages = build_stages(whole, cuts, total_pages=7, max_slots=3, cache=cache)
    bounds = [0, *cuts, 5]
    for i, stage in enumerate(stages):
        layers = range(bounds[i], bounds[i + 1])
        weights = sum(found.layer_weight_bytes[layer] for layer in layers)
        weights += found.embedding_bytes if i == 0 else 0
        weights += found.head_bytes if i == len(stages) - 1 else 0
        assert stage.weight_bytes == weights
        assert stage.cache_bytes == declared_cache_bytes(found, layers, pages=7, slots=3)


def test_decoding_reads_the_chosen_experts_alone(whole: Path) -> None:
    spec, found = read_spec(whole), read_footprint(whole)
    tensors = load_file(whole / "model.safetensors")
    one_expert = sum(t.nbytes for name, t in tensors.items() if ".layers.4.mlp.experts.0." in name)
    idle = (spec.num_experts - spec.experts_per_token) * one_expert * spec.layer_is_dense.count(False)
    assert one_expert > 0
    assert found.idle_expert_bytes == idle
    assert found.decode_bytes == sum(found.layer_weight_bytes) - idle + found.head_bytes


@pytest.mark.parametrize("name", MODELS)
def test_exl3_weights_stay_packed(name: str, tmp_path: Path) -> None:
    folder = checkpoint_folder(name, tmp_path)
    found, (stage,) = read_footprint(folder, "q8"), build_stages(folder, cache="q8", total_pages=4)
    declared = sum(found.layer_weight_bytes) + found.embedding_bytes + found.head_bytes
    assert stage.weight_bytes == declared
    file_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert declared < 1.1 * file_bytes


def test_a_latent_layer_takes_at_most_620_bytes_a_token(tmp_path: Path) -> None:
    found = read_footprint(checkpoint_folder("3.0_mul1", tmp_path), "q8")
    assert found.layer_cache[3].bytes_per_token == 608


def drop(name: str) -> Edit:
    return lambda tensors: tensors.pop(name)


def replace(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (drop(f"{PREFIX}.2.self_attn.kv_b_proj.weight"), "kv_b_proj.weight"),
        (drop(f"{PREFIX}.4.mlp.experts.7.up_proj.weight"), r"layers\.4\.mlp\.experts\.7\.up_proj"),
        (drop("lm_head.weight"), "lm_head"),
        (
            replace(f"{PREFIX}.0.self_attn.q_proj.weight", lambda t: t[:, :32]),
            r"layers\.0\.self_attn\.q_proj",
        ),
        (replace(f"{PREFIX}.1.self_attn.k_conv1d.weight", lambda t: t[:, 0]), "k_conv1d"),
        (replace(f"{PREFIX}.3.hc_ffn_scale", torch.Tensor.bfloat16), r"hc_ffn_scale must be F32"),
        (replace(f"{PREFIX}.0.hc_attn_base", torch.Tensor.half), r"hc_attn_base must be F32"),
        (replace(f"{PREFIX}.1.mlp.gate.weight", torch.Tensor.int), r"mlp\.gate\.weight"),
        (
            lambda t: t.update({f"{PREFIX}.9.input_layernorm.weight": torch.ones(64)}),
            r"layers\.9\.input_layernorm",
        ),
        (lambda t: t.update({f"{PREFIX}.0.self_attn.q_proj.bias": torch.ones(64)}), r"q_proj\.bias"),
    ],
)
def test_a_checkpoint_that_does_not_match_its_config(
    whole: Path, tmp_path: Path, edit: Edit, name: str
) -> None:
    with pytest.raises(ModelDamagedError, match=name):
        read_footprint(edited(whole, tmp_path, edit))


def test_a_cut_shard_and_a_tensor_in_two_files(tmp_path: Path) -> None:
    folder = checkpoint_folder("4.0_mcg", tmp_path)
    shard = folder / "model-00001-of-00002.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 100)
    with pytest.raises(ModelDamagedError, match=r"model-00001-of-00002.safetensors is cut short"):
        SafetensorsSource.open(folder)
    (folder / "model.safetensors.index.json").unlink()
    for name in ("00001-of-00002", "00002-of-00002"):
        save_file({"lm_head.suh": torch.zeros(256)}, folder / f"model-{name}.safetensors")
    with pytest.raises(ModelDamagedError, match=r"lm_head.suh occurs twice"):
        SafetensorsSource.open(folder)


def test_vision_tensors_are_skipped_with_a_notice(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vision = {"model.visual.merger.up_proj.weight": torch.ones(4, 4)}
    folder = edited(whole, tmp_path, lambda tensors: tensors.update(vision))
    with caplog.at_level(logging.INFO, "tandem.models"):
        found = read_footprint(folder)
    assert "1 vision tensors (64 B) are skipped" in caplog.text
    assert sum(found.layer_weight_bytes) == sum(read_footprint(whole).layer_weight_bytes)


def config(**changes: Any) -> dict[str, Any]:
    text = {**text_config(), **changes}
    gone = [key for key, value in changes.items() if value is ...]
    return {"text_config": {key: value for key, value in text.items() if key not in gone}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["linear_attention", "mamba2"] + ["linear_attention"] * 3},
            "Layer 1 has an unknown type",
        ),
        ({"mlp_layer_types": ["dense"] * 4 + ["hash"]}, "Layer 4 has an unknown type"),
        ({"indexer_types": ["full"] * 4 + ["half"]}, "Layer 4 has an unknown type"),
        ({"indexer_types": ["full", "full", "shared", "full", "full"]}, "Layer 2 shares an earlier"),
        ({"layer_types": ["linear_attention"]}, "layer_types must be a list of 5"),
        ({"index_kpool": ...}, "index_kpool must be a whole number"),
        ({"index_topk": 66}, "index_topk must be a multiple of index_kpool"),
        ({"kv_lora_rank": "512"}, "kv_lora_rank must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a number"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim must be 0"),
        ({"n_group": 8}, "n_group must be 1"),
        ({"scoring_func": "softmax"}, "scoring_func must be 'sigmoid'"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail must be True"),
        ({"attention_bias": True}, "attention_bias must be False"),
        ({"linear_attn_config": {"head_dim": 32, "short_conv_kernel_size": 4}}, "num_heads"),
        (
            {"linear_attn_config": {**text_config()["linear_attn_config"], "gate_lower_bound": None}},
            "safe_gate must be False",
        ),
    ],
)
def test_configs_of_other_models_are_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=message):
        from_config(config(**changes))


def test_flat_configs_and_flat_linear_fields_are_read() -> None:
    text = text_config()
    linear = text.pop("linear_attn_config")
    text |= {
        "linear_head_dim": 32,
        "linear_num_heads": 2,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
    }
    assert linear["num_heads"] == 2
    assert from_config(text) == from_config({"text_config": text_config()})


def test_dense_layers_may_be_given_by_their_number() -> None:
    assert from_config(config(mlp_layer_types=..., first_k_dense_replace=2)).layer_is_dense == (
        True, True, False, False, False,
    )  # fmt: skip


def test_the_registry_knows_the_architecture() -> None:
    spec = registry.spec_from_config({"architectures": ["Glm5NextForConditionalGeneration"], **config()})
    assert (spec.architecture, spec.residual_width) == ("Glm5NextForConditionalGeneration", 4 * 64)
    with pytest.raises(ModelUnsupportedError, match="GGUF"):
        from_gguf({"general.architecture": "glm5_next"})


def test_counting_bytes_needs_no_torch() -> None:
    code = "import sys, tandem.models.glm5_next.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
