"""Tiny random Llama-like checkpoints for every room's tests: a folder as the hub would hold it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyLlama:
    """Sizes of a tiny model; ``extra`` overrides or adds config.json fields."""

    architecture: str = "LlamaForCausalLM"
    num_layers: int = 3
    hidden_size: int = 48
    intermediate_size: int = 80
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 256 + len(_SPECIAL)
    context_tokens: int = 1024
    tied: bool = True
    dtype: torch.dtype = torch.float32
    seed: int = 0
    extra: dict[str, object] = field(default_factory=dict)

    def config(self) -> dict[str, object]:
        model_type = self.architecture.removesuffix("ForCausalLM").lower()
        return {
            "architectures": [self.architecture],
            "model_type": model_type,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.context_tokens,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 256,
            "eos_token_id": 258,
            **self.extra,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights of about unit gain, norms around one: logits spread enough for greedy text to be stable."""
        generator = torch.Generator().manual_seed(self.seed)
        H, D, inner = self.hidden_size, self.head_dim, self.intermediate_size
        query, key = self.heads * D, self.kv_heads * D
        qkv_bias = self.architecture == "Qwen2ForCausalLM" or bool(self.extra.get("attention_bias"))

        def matrix(out_features: int, in_features: int) -> torch.Tensor:
            return torch.randn(out_features, in_features, generator=generator) * in_features**-0.5

        def vector(size: int, around: float) -> torch.Tensor:
            return around + 0.1 * torch.randn(size, generator=generator)

        tensors = {
            "model.embed_tokens.weight": torch.randn(self.vocab_size, H, generator=generator),
            "model.norm.weight": vector(H, 1.0),
        }
        if not self.tied:
            tensors["lm_head.weight"] = matrix(self.vocab_size, H)
        for layer in range(self.num_layers):
            base = f"model.layers.{layer}."
            tensors[base + "input_layernorm.weight"] = vector(H, 1.0)
            tensors[base + "post_attention_layernorm.weight"] = vector(H, 1.0)
            for name, size in (("q", query), ("k", key), ("v", key)):
                tensors[f"{base}self_attn.{name}_proj.weight"] = matrix(size, H)
                if qkv_bias:
                    tensors[f"{base}self_attn.{name}_proj.bias"] = vector(size, 0.0)
            tensors[base + "self_attn.o_proj.weight"] = matrix(H, query)
            if qkv_bias and self.architecture != "Qwen2ForCausalLM":
                tensors[base + "self_attn.o_proj.bias"] = vector(H, 0.0)
            if self.architecture == "Qwen3ForCausalLM":
                tensors[base + "self_attn.q_norm.weight"] = vector(D, 1.0)
                tensors[base + "self_attn.k_norm.weight"] = vector(D, 1.0)
            tensors[base + "mlp.gate_proj.weight"] = matrix(inner, H)
            tensors[base + "mlp.up_proj.weight"] = matrix(inner, H)
            tensors[base + "mlp.down_proj.weight"] = matrix(H, inner)
        return {name: tensor.to(self.dtype) for name, tensor in tensors.items()}


def write_tiny_llama(folder: Path, tiny: TinyLlama | None = None, *, tokenizer: bool = False) -> Path:
    """Write config.json, model.safetensors and (on demand) a byte-level tokenizer with a chat template."""
    tiny = tiny or TinyLlama()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(), indent=2))
    save_file(tiny.tensors(), folder / "model.safetensors")
    if tokenizer:
        _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Byte b is token b (in the byte-level alphabet's order); the specials follow."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 258]}))
