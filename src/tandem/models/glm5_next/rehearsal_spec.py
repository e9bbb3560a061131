"""The released model's dimensions, and a small one of the same kind, before any file is there. No torch."""

from __future__ import annotations

from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.planner.geometry import EXL3_3_05_BITS, GLM_5_3_FLASH, BitWidths, Geometry


def spec_of(geometry: Geometry) -> Glm5NextSpec:
    """What a geometry leaves open are constants of the released model."""
    g = geometry
    return Glm5NextSpec(
        architecture="Glm5NextForConditionalGeneration",
        num_layers=g.num_layers,
        vocab_size=g.vocab_size,
        context_tokens=g.context_tokens,
        hidden_size=g.hidden_size,
        rms_norm_eps=1e-5,
        tied_head=False,
        layer_is_mla=g.layer_is_mla,
        layer_is_dense=g.layer_is_dense,
        layer_shares_selection=tuple(
            mla and not own for mla, own in zip(g.layer_is_mla, g.layer_has_indexer, strict=True)
        ),
        heads=g.attention_heads,
        q_lora_rank=g.q_lora_rank,
        kv_lora_rank=g.kv_lora_rank,
        qk_head_dim=g.qk_head_dim,
        v_head_dim=g.v_head_dim,
        index_heads=g.index_heads,
        index_head_dim=g.index_head_dim,
        index_topk=g.index_topk,
        index_kpool=g.index_kpool,
        kda_heads=g.kda_heads,
        kda_head_dim=g.kda_head_dim,
        conv_taps=g.conv_kernel,
        decay_lower_bound=-5.0,
        intermediate_size=g.intermediate_size,
        expert_intermediate_size=g.expert_intermediate_size,
        num_experts=g.num_experts,
        experts_per_token=g.experts_per_token,
        shared_experts=g.num_shared_experts,
        routed_scaling=2.5,
        normalize_experts=True,
        swiglu_limit=10.0,
        streams=g.residual_streams,
        sinkhorn_iterations=20,
        streams_eps=1e-6,
        mtp_layers=0,
    )


RELEASED = spec_of(GLM_5_3_FLASH)
RELEASED_BITS = EXL3_3_05_BITS
SMALL_BITS = BitWidths(experts=3, attention=5, shared=5, dense=4, head=6)
SMALL = spec_of(
    Geometry(
        hidden_size=512,
        vocab_size=512,
        layer_is_mla=(False, False, True, False, True),
        layer_is_dense=(True, False, False, False, False),
        layer_has_indexer=(False, False, True, False, True),
        intermediate_size=512,
        expert_intermediate_size=128,
        num_experts=12,
        experts_per_token=4,
        num_shared_experts=1,
        attention_heads=16,
        q_lora_rank=256,
        kv_lora_rank=256,
        qk_head_dim=128,
        v_head_dim=128,
        rope_head_dim=0,
        index_heads=16,
        index_head_dim=128,
        index_topk=64,
        index_kpool=4,
        kda_heads=4,
        kda_head_dim=128,
        conv_kernel=4,
        residual_streams=4,
        context_tokens=4096,
    )
)
"""Every kind of layer in a few megabytes."""
