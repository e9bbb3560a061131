"""Tiny random GLM-5.3-Flash models, built with transformers: the oracle of tests/glm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import DynamicCache
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

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
    "hidden_act": "silu",
    "qk_rope_head_dim": 0,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
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


class Oracle(torch.nn.Module):
    """transformers' text model with a head: what a checkpoint's logits are to be."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        super().__init__()
        made = oracle_config(config)
        self.model = Glm5NextTextModel(made)
        self.lm_head = torch.nn.Linear(made.hidden_size, made.vocab_size, bias=False)
        self.config = config
        randomize(self, seed)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """One pass: int64 [T] → [T, V]."""
        return self.lm_head(self.model(token_ids[None], use_cache=False).last_hidden_state)[0]

    def steps(self, token_ids: torch.Tensor, prompt: int) -> torch.Tensor:
        """A pass over the first ``prompt`` tokens, then one at a time: [T, V]."""
        cache = DynamicCache(config=self.model.config)
        states = [self.model(token_ids[None, :prompt], cache=cache, use_cache=True).last_hidden_state]
        for i in range(prompt, len(token_ids)):
            one = token_ids[None, i : i + 1]
            states.append(self.model(one, cache=cache, use_cache=True).last_hidden_state)
        return self.lm_head(torch.cat(states, dim=1))[0]

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """The weights under the released checkpoint's names."""
        return {"lm_head.weight": self.lm_head.weight.data, **to_checkpoint(self.model)}

    def save(self, folder: Path) -> Path:
        """config.json and model.safetensors, in float32."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = {"architectures": ["Glm5NextForConditionalGeneration"], "text_config": self.config}
        (folder / "config.json").write_text(json.dumps(whole))
        save_file(self.checkpoint(), folder / "model.safetensors")
        return folder


def to_checkpoint(module: torch.nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """A module's weights under the released checkpoint's names, below ``model.language_model.<prefix>``."""
    tensors: dict[str, torch.Tensor] = {}
    for key, value in module.state_dict().items():
        tensors.update(_checkpoint_names(f"model.language_model.{prefix}{key}", value))
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def _checkpoint_names(key: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    key = key.replace("forget_gate.", "").replace("attn_hc.", "hc_attn_").replace("ffn_hc.", "hc_ffn_")
    base, _, last = key.rpartition(".")
    if key.endswith("conv1d.weight"):
        return {
            key.replace("conv1d", f"{part}_conv1d"): x for part, x in zip("qkv", value.chunk(3), strict=True)
        }
    if last == "gate_up_proj":
        gates, ups = value.chunk(2, dim=1)
        named = {f"{base}.{e}.gate_proj.weight": gate for e, gate in enumerate(gates)}
        return named | {f"{base}.{e}.up_proj.weight": up for e, up in enumerate(ups)}
    if key.endswith("experts.down_proj"):
        return {f"{base}.{e}.down_proj.weight": down for e, down in enumerate(value)}
    return {key: value}
