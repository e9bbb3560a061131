"""Tiny random GLM-5.3-Flash models, built with transformers: the oracle of tests/glm."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 64,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "eos_token_id": [0],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
    "layer_types": ["linear_attention", "linear_attention", "deepseek_sparse_attention"] * 2,
    "indexer_types": ["full"] * 6,
    "index_topk": 64,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "index_kpool": 4,
    "swiglu_limit": 10.0,
    "linear_attn_config": {
        "head_dim": 32,
        "num_heads": 2,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
}


def text_config(**changes: Any) -> dict[str, Any]:
    """TEXT_CONFIG with changes, its per-layer lists cut to the number of layers."""
    config = {**TEXT_CONFIG, **changes}
    layers = config["num_hidden_layers"]
    for key in ("layer_types", "indexer_types", "mlp_layer_types"):
        config[key] = config[key][:layers]
    return config


def oracle_config(config: dict[str, Any]) -> Glm5NextTextConfig:
    """transformers' reading of a text_config (it names the sparse layers differently from checkpoints)."""
    renamed = [
        "indexed_attention" if kind == "deepseek_sparse_attention" else kind for kind in config["layer_types"]
    ]
    made = Glm5NextTextConfig(**{**config, "layer_types": renamed})
    made._attn_implementation = "eager"
    return made


def randomize(module: torch.nn.Module, seed: int, gain: float = 1.0) -> torch.nn.Module:
    """Weights that keep activations of order one and every branch of the model in use."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith(("norm.weight", "layernorm.weight")) or (name == "weight" and tensor.dim() == 1):
                tensor.copy_(1 + 0.1 * noise)
            elif name.endswith(("base", "scale", "A_log", "dt_bias", "bias", "ape")):
                tensor.copy_(0.5 * noise + (1.0 if name.endswith("scale") else 0.0))
            elif tensor.dim() >= 2:
                tensor.copy_(gain * noise * tensor.shape[-1] ** -0.5)
    return module.eval().requires_grad_(False)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
