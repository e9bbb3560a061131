"""A whole, tiny Llama checkpoint in a folder, for tests that break one thing of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCAB = 64, 2, 1, 96, 2, 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FFN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


def write_tiny_llama(folder: Path) -> Path:
    """config.json, model.safetensors and a byte-level tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(_weights(), folder / "model.safetensors")
    vocabulary = {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def change_config(folder: Path, **changes: object) -> None:
    """Set keys of config.json; None removes one."""
    config = {**CONFIG, **changes}
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def _weights() -> dict[str, torch.Tensor]:
    head_dim = HIDDEN // HEADS
    tensors = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * head_dim, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * head_dim),
            "mlp.gate_proj": (FFN, HIDDEN),
            "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN),
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    return {name: torch.randn(shape) * 0.05 for name, shape in tensors.items()}
