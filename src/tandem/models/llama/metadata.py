"""LlamaSpec from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.core.errors import ModelUnsupportedError
from tandem.kernels.rope.frequencies import RopeSpec, yarn_attention_factor
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.llama.fields import Fields, check_head_dim


def from_gguf(metadata: Mapping[str, object]) -> LlamaSpec:
    """Raises ModelUnsupportedError naming what is missing, unusable or asks for something not served."""
    architecture = str(metadata["general.architecture"])
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    fields = Fields(own, f"GGUF metadata {prefix}*")
    if fields.count("expert_count", default=0, minimum=0):
        raise ModelUnsupportedError(
            "Mixtures of experts in Llama's form are not supported",
            found=f"{prefix}expert_count = {own['expert_count']}",
        )
    layers, heads = fields.count("block_count"), fields.count("attention.head_count")
    hidden = fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", default=hidden // heads)
    check_head_dim(head_dim, "GGUF metadata")
    kv_heads = fields.count("attention.head_count_kv", default=heads)
    if heads % kv_heads:
        raise fields.unusable("attention.head_count_kv", f"a divisor of {heads} query heads")
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    words = len(vocabulary) if isinstance(vocabulary, list | tuple) else None
    rope, context = _rope(fields, head_dim)
    return LlamaSpec(
        architecture=architecture,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=fields.count("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size", default=words),
        context_tokens=context,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        qkv_bias=architecture == "qwen2",
        output_bias=False,
        qk_norm=architecture == "qwen3",
        layer_windows=(fields.count("attention.sliding_window", default=0, minimum=0),) * layers,
        gguf=True,
    )


def _rope(fields: Fields, head_dim: int) -> tuple[RopeSpec, int]:
    context = fields.count("context_length")
    theta = fields.number("rope.freq_base", default=10_000.0)
    rotary_dim = fields.count("rope.dimension_count", default=head_dim)
    kind = fields.word("rope.scaling.type", "none")
    if kind == "none":
        return RopeSpec(theta, rotary_dim), context
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeSpec(theta, rotary_dim, "linear", factor), context
    if kind == "yarn":
        original = fields.count("rope.scaling.original_context_length")
        sharpness = yarn_attention_factor(factor) * fields.number("rope.scaling.attn_factor", default=1.0)
        rope = RopeSpec(theta, rotary_dim, "yarn", factor, original, attention_factor=sharpness)
        return rope, max(context, int(original * factor))
    raise fields.unusable("rope.scaling.type", "none, linear or yarn")
