"""The released model's dimensions: what its caches take, here and in the planner that knows no file."""

from __future__ import annotations

import pytest
import torch

from tandem.api.dimensions import footprint_of_dimensions
from tandem.cache.sizes import check_format
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS
from tandem.models.glm5_next.spec import footprint, from_config, layer_cache, recurrent_shape
from tandem.planner.engines import tandem_layer_cache
from tandem.planner.geometry import EXL3_3_05_BITS, GLM_5_3_FLASH, geometry_from_config

LAYERS = 45
CONFIG = {
    "text_config": {
        "vocab_size": 154880,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 64,
        "n_shared_experts": 1,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "first_k_dense_replace": 3,
        "layer_types": [
            "deepseek_sparse_attention" if layer % 4 == 3 else "linear_attention" for layer in range(LAYERS)
        ],
        "indexer_types": ["full"] * LAYERS,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_kpool": 4,
        "linear_attn_config": {
            "head_dim": 128,
            "num_heads": 64,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
        },
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "num_nextn_predict_layers": 1,
    },
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def spec() -> Glm5NextSpec:
    return from_config(CONFIG)


def test_planner_and_model_read_the_config_alike() -> None:
    assert geometry_from_config(CONFIG) == GLM_5_3_FLASH


@pytest.mark.parametrize("cache", ["fp16", "q8"])
def test_planner_and_model_count_caches_alike(spec: Glm5NextSpec, cache: str) -> None:
    for layer in range(LAYERS):
        assert layer_cache(spec, layer, check_format(cache)) == tandem_layer_cache(
            GLM_5_3_FLASH, layer, cache
        )


def test_what_a_token_and_a_checkpoint_take(spec: Glm5NextSpec) -> None:
    per_token = [layer_cache(spec, layer, "q8").bytes_per_token for layer in range(LAYERS)]
    assert max(per_token) == 608
    assert sum(per_token) == 6688
    assert spec.layer_is_mla.count(False) * recurrent_shape(spec).checkpoint_bytes == 152_633_344
    assert spec.residual_width == 16384


@pytest.mark.parametrize("chunk_tokens", [512, 2048, 4096])
def test_dimensions_alone_give_the_workspace_of_a_checkpoint(chunk_tokens: int) -> None:
    source = RandomCheckpoint(RELEASED, RELEASED_BITS, torch.device("cpu"))
    headers = {name: source.header(name) for name in source.names()}
    known = footprint(RELEASED, headers, chunk_tokens=chunk_tokens, cache_dtype="q8", card_kind="cuda")
    planned = footprint_of_dimensions(
        GLM_5_3_FLASH, EXL3_3_05_BITS, kv_format="q8", chunk_tokens=chunk_tokens
    )
    assert planned.workspace_bytes == known.workspace_bytes
    assert planned.workspace_bytes_per_token == known.workspace_bytes_per_token
    assert planned.graph_bytes_per_layer == known.graph_bytes_per_layer
    assert sum(planned.layer_weight_bytes) == pytest.approx(sum(known.layer_weight_bytes), rel=5e-3)
