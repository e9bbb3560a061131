"""GLM-5.3-Flash's dimensions from config.json. No torch.

Every number is read from the config: defaults of libraries differ from the released model's (``index_kpool``
is 16 in one of them and 4 in the model), so that a missing field is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.core.errors import ModelUnsupportedError
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.fields import Fields

_SPARSE_ATTENTION = ("deepseek_sparse_attention", "indexed_attention", "full_attention")


def from_config(config: Mapping[str, object]) -> Glm5NextSpec:
    """From config.json, nested (``text_config``) or flat.

    Raises ModelUnsupportedError naming a missing field, or one whose value changes the model into one that is
    not implemented.
    """
    fields = Fields.of_text(config)
    _refuse_variants(fields)
    layers = fields.count("num_hidden_layers")
    layer_is_mla = _layer_types(fields, layers)
    return Glm5NextSpec(
        architecture="Glm5NextForConditionalGeneration",
        num_layers=layers,
        vocab_size=fields.count("vocab_size"),
        context_tokens=fields.count("max_position_embeddings"),
        hidden_size=fields.count("hidden_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_head=fields.flag("tie_word_embeddings", default=bool(config.get("tie_word_embeddings", False))),
        layer_is_mla=layer_is_mla,
        layer_is_dense=_mlp_types(fields, layers),
        layer_shares_selection=_shared_selections(fields, layer_is_mla),
        heads=fields.count("num_attention_heads"),
        q_lora_rank=fields.count("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_head_dim=fields.count("qk_nope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        index_heads=fields.count("index_n_heads"),
        index_head_dim=fields.count("index_head_dim"),
        index_topk=_index_topk(fields),
        index_kpool=fields.count("index_kpool"),
        kda_heads=fields.count("linear_attn_config.num_heads", "linear_num_heads"),
        kda_head_dim=fields.count("linear_attn_config.head_dim", "linear_head_dim"),
        conv_taps=fields.count("linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"),
        decay_lower_bound=_decay_lower_bound(fields),
        intermediate_size=fields.count("intermediate_size"),
        expert_intermediate_size=fields.count("moe_intermediate_size"),
        num_experts=fields.count("n_routed_experts"),
        experts_per_token=fields.count("num_experts_per_tok"),
        shared_experts=fields.count("n_shared_experts", minimum=0),
        routed_scaling=fields.number("routed_scaling_factor"),
        normalize_experts=fields.flag("norm_topk_prob"),
        swiglu_limit=fields.optional_number("swiglu_limit"),
        streams=fields.count("hc_mult"),
        sinkhorn_iterations=fields.count("hc_sinkhorn_iters"),
        streams_eps=fields.number("hc_eps"),
        mtp_layers=fields.count("num_nextn_predict_layers", minimum=0, default=0),
    )


def _refuse_variants(fields: Fields) -> None:
    fields.require("hidden_act", "silu")
    fields.require("qk_rope_head_dim", 0)
    for name, only in (
        ("attention_bias", False),
        ("n_group", 1),
        ("topk_group", 1),
        ("scoring_func", "sigmoid"),
        ("topk_method", "noaux_tc"),
        ("mhc", True),
        ("index_kpool_compress", True),
        ("index_kpool_always_select_tail", True),
    ):
        fields.require(name, only, absent_is_fine=True)


def _layer_types(fields: Fields, layers: int) -> tuple[bool, ...]:
    kinds = fields.per_layer("layer_types", layers)
    for layer, kind in enumerate(kinds):
        if kind != "linear_attention" and kind not in _SPARSE_ATTENTION:
            raise ModelUnsupportedError(
                f"Layer {layer} has an unknown type in config.json's layer_types",
                found=repr(kind),
                remedy=f"linear_attention or {_SPARSE_ATTENTION[0]}",
            )
    return tuple(kind != "linear_attention" for kind in kinds)


def _mlp_types(fields: Fields, layers: int) -> tuple[bool, ...]:
    if not fields.has("mlp_layer_types"):
        dense = fields.count("first_k_dense_replace", minimum=0)
        return tuple(layer < dense for layer in range(layers))
    kinds = fields.per_layer("mlp_layer_types", layers)
    for layer, kind in enumerate(kinds):
        if kind not in ("dense", "sparse"):
            raise ModelUnsupportedError(
                f"Layer {layer} has an unknown type in config.json's mlp_layer_types",
                found=repr(kind),
                remedy="dense or sparse",
            )
    return tuple(kind == "dense" for kind in kinds)


def _shared_selections(fields: Fields, layer_is_mla: tuple[bool, ...]) -> tuple[bool, ...]:
    kinds = fields.per_layer("indexer_types", len(layer_is_mla))
    shared = tuple(mla and kind == "shared" for mla, kind in zip(layer_is_mla, kinds, strict=True))
    first = next((layer for layer, mla in enumerate(layer_is_mla) if mla), None)
    for layer, kind in enumerate(kinds):
        if kind not in ("full", "shared"):
            raise ModelUnsupportedError(
                f"Layer {layer} has an unknown type in config.json's indexer_types",
                found=repr(kind),
                remedy="full or shared",
            )
    if first is not None and shared[first]:
        raise ModelUnsupportedError(
            f"Layer {first} shares an earlier layer's selection, but is the first with attention",
            found="indexer_types = shared",
        )
    return shared


def _decay_lower_bound(fields: Fields) -> float | None:
    bound = fields.optional_number("linear_attn_config.gate_lower_bound", "linear_lower_bound")
    if bound is None and fields.has("linear_attn_config"):
        # null alone is not enough: the field beside it defaults to a gate that has a bound.
        fields.require("linear_attn_config.safe_gate", False)
    return bound


def _index_topk(fields: Fields) -> int:
    topk, kpool = fields.count("index_topk"), fields.count("index_kpool")
    if topk % kpool:
        raise ModelUnsupportedError(
            "config.json's index_topk must be a multiple of index_kpool", found=f"{topk} and {kpool}"
        )
    return topk
