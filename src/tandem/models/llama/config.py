"""LlamaSpec from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.kernels.rope.frequencies import RopeSpec, yarn_attention_factor
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.llama.fields import Fields, check_head_dim


def from_config(config: Mapping[str, object]) -> LlamaSpec:
    """Raises ModelUnsupportedError naming what is missing, unusable or asks for something not served."""
    fields = Fields(config, "config.json")
    names = config["architectures"]
    assert isinstance(names, list | tuple)
    architecture = str(names[0])
    _refuse_variants(fields)
    layers, heads = fields.count("num_hidden_layers"), fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    head_dim = fields.count("head_dim", default=hidden // heads)
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.unusable("num_key_value_heads", f"a divisor of {heads} query heads")
    check_head_dim(head_dim, "config.json")
    bias = fields.flag("attention_bias", default=False)
    qwen2 = architecture == "Qwen2ForCausalLM"
    rope, context = _rope(fields, head_dim)
    return LlamaSpec(
        architecture=architecture,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=fields.count("vocab_size"),
        context_tokens=context,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        qkv_bias=qwen2 or bias,
        output_bias=bias and not qwen2,
        qk_norm=architecture == "Qwen3ForCausalLM",
        layer_windows=_windows(fields, architecture, layers),
        gguf=False,
        tied_head=fields.flag("tie_word_embeddings", default=False),
    )


def _refuse_variants(fields: Fields) -> None:
    if fields.word("hidden_act", "silu") not in {"silu", "swish"}:
        raise fields.unusable("hidden_act", "silu")
    if fields.flag("mlp_bias", default=False):
        raise fields.unusable("mlp_bias", "false")


def _windows(fields: Fields, architecture: str, layers: int) -> tuple[int, ...]:
    window = fields.count("sliding_window", default=0, minimum=0)
    if architecture == "LlamaForCausalLM" or not window:
        return (0,) * layers
    if architecture == "MistralForCausalLM":
        return (window,) * layers
    if not fields.flag("use_sliding_window", default=False):
        return (0,) * layers
    types = fields.values.get("layer_types")
    if isinstance(types, list | tuple) and len(types) >= layers:
        return tuple(window if kind == "sliding_attention" else 0 for kind in types[:layers])
    full = fields.count("max_window_layers", default=layers, minimum=0)
    return tuple(window if layer >= full else 0 for layer in range(layers))


def _rope(fields: Fields, head_dim: int) -> tuple[RopeSpec, int]:
    """The rotation, and the context it is made for."""
    context = fields.count("max_position_embeddings")
    scaling = fields.nested("rope_parameters")
    if not scaling.values:
        scaling = fields.nested("rope_scaling")
    theta = scaling.number("rope_theta", default=fields.number("rope_theta", default=10_000.0))
    partial = scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * partial)
    kind = scaling.word("rope_type", scaling.word("type", "default"))
    if kind in {"default", "dynamic"}:
        return RopeSpec(theta, rotary_dim), context
    if kind == "linear":
        return RopeSpec(theta, rotary_dim, "linear", scaling.number("factor")), context
    original = scaling.count("original_max_position_embeddings", default=context)
    if kind == "llama3":
        rope = RopeSpec(
            theta,
            rotary_dim,
            "llama3",
            scaling.number("factor"),
            original,
            low_frequency_factor=scaling.number("low_freq_factor"),
            high_frequency_factor=scaling.number("high_freq_factor"),
        )
        return rope, context
    if kind == "yarn":
        factor = scaling.number("factor", default=context / original)
        mscales = [scaling.values.get(name) for name in ("mscale", "mscale_all_dim")]
        inferred = yarn_attention_factor(
            factor, *(float(m) if isinstance(m, int | float) else 0.0 for m in mscales)
        )
        rope = RopeSpec(
            theta,
            rotary_dim,
            "yarn",
            factor,
            original,
            beta_fast=scaling.number("beta_fast", default=32.0),
            beta_slow=scaling.number("beta_slow", default=1.0),
            truncate=scaling.flag("truncate", default=True),
            attention_factor=scaling.number("attention_factor", default=inferred),
        )
        return rope, max(context, int(original * factor))
    raise scaling.unusable("rope_type", "default, dynamic, linear, llama3 or yarn")
