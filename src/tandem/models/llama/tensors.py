"""Which tensors a Llama-like checkpoint holds, under which names and with which shapes. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.loader.base import TensorHeader
from tandem.models.llama.dimensions import LlamaSpec

_HF_LAYER = {
    "attention_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_GGUF_LAYER = {
    "attention_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_HF_MODEL = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_GGUF_MODEL = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints store what the config says already."""


def model_tensor(spec: LlamaSpec, role: str) -> str:
    """Name of ``embedding``, ``norm``, ``head`` or (GGUF) ``rope_factors``."""
    return (_GGUF_MODEL if spec.gguf else _HF_MODEL)[role]


def layer_tensor(spec: LlamaSpec, layer: int, role: str) -> str:
    if spec.gguf:
        return f"blk.{layer}.{_GGUF_LAYER[role]}"
    return f"model.layers.{layer}.{_HF_LAYER[role]}"


def head_is_tied(spec: LlamaSpec, names: Collection[str]) -> bool:
    return model_tensor(spec, "head") not in names if spec.gguf else spec.tied_head


def layer_shapes(spec: LlamaSpec) -> dict[str, tuple[int, ...]]:
    """Role -> shape of every tensor that one layer has."""
    H, D = spec.hidden_size, spec.head_dim
    query, key = spec.heads * D, spec.kv_heads * D
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (H,),
        "q": (query, H),
        "k": (key, H),
        "v": (key, H),
        "o": (H, query),
        "mlp_norm": (H,),
        "gate": (spec.intermediate_size, H),
        "up": (spec.intermediate_size, H),
        "down": (H, spec.intermediate_size),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (query,), "k_bias": (key,), "v_bias": (key,)}
    if spec.output_bias:
        shapes["o_bias"] = (H,)
    if spec.qk_norm:
        shapes |= {"q_norm": (D,), "k_norm": (D,)}
    return shapes


def check_tensors(spec: LlamaSpec, headers: Mapping[str, TensorHeader]) -> None:
    """Every tensor is there with its shape, and none that would go unused.

    Raises ModelDamagedError (missing, other shape) or ModelUnsupportedError (one more than this
    architecture has), naming the tensor.
    """
    H, V = spec.hidden_size, spec.vocab_size
    expected = {model_tensor(spec, "embedding"): (V, H), model_tensor(spec, "norm"): (H,)}
    if not head_is_tied(spec, headers):
        expected[model_tensor(spec, "head")] = (V, H)
    shapes = layer_shapes(spec)
    for layer in range(spec.num_layers):
        expected |= {layer_tensor(spec, layer, role): shape for role, shape in shapes.items()}
    for name, shape in expected.items():
        header = headers.get(name)
        if header is None:
            raise ModelDamagedError(
                f"Tensor {name} is missing",
                found=f"{len(headers)} other tensors",
                remedy="weights and config of one and the same checkpoint",
            )
        if header.shape != shape:
            raise ModelDamagedError(
                f"Tensor {name} must be {shape}",
                found=f"{header.shape}",
                remedy="weights and config of one and the same checkpoint",
            )
    known = {*expected, *(_GGUF_MODEL if spec.gguf else _HF_MODEL).values()}
    for name in headers:
        if name not in known and not name.endswith(_IGNORED_SUFFIX):
            raise ModelUnsupportedError(
                f"{spec.architecture} has no tensor {name}",
                found="a checkpoint of another architecture, or with additions that would be ignored",
            )
