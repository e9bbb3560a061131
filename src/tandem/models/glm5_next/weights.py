"""From a checkpoint's tensors to the layers' weights."""

from __future__ import annotations

import torch

from tandem.layers.hyper_connection import HyperConnection, HyperConnectionWeights
from tandem.layers.indexer import IndexerWeights
from tandem.layers.kda import KdaWeights
from tandem.layers.mla import MlaWeights
from tandem.layers.moe import ClampedMlp, MoeLayer
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.reader import Reader
from tandem.models.glm5_next.tensors import conv_names, qkv_names


def kda_weights(spec: Glm5NextSpec, reader: Reader, base: str) -> KdaWeights:
    """``base`` is the layer's ``….self_attn``, here and below."""
    hidden, width, rank, heads = spec.hidden_size, spec.kda_width, spec.kda_head_dim, spec.kda_heads
    qkv = qkv_names(reader.names, base)
    convolutions = [reader.array(name) for name in conv_names(reader.names, base)]
    return KdaWeights(
        qkv=tuple(reader.linear(name, hidden, 3 * width // len(qkv)) for name in qkv),
        conv=torch.cat(convolutions).squeeze(1),
        forget_down=reader.linear(f"{base}.f_a_proj", hidden, rank),
        forget_up=reader.linear(f"{base}.f_b_proj", rank, width),
        mixing=reader.linear(f"{base}.b_proj", hidden, heads),
        gate_down=reader.linear(f"{base}.g_a_proj", hidden, rank),
        gate_up=reader.linear(f"{base}.g_b_proj", rank, width),
        a_log=reader.array(f"{base}.A_log"),
        dt_bias=reader.array(f"{base}.dt_bias").view(heads, rank),
        out_norm=reader.array(f"{base}.o_norm.weight"),
        out=reader.linear(f"{base}.o_proj", width, hidden),
    )


def mla_weights(spec: Glm5NextSpec, reader: Reader, base: str) -> MlaWeights:
    key_size, value_size = spec.qk_head_dim, spec.v_head_dim
    kv_b = reader.dense(f"{base}.kv_b_proj", spec.kv_lora_rank, spec.heads * (key_size + value_size))
    halves = kv_b.view(spec.heads, key_size + value_size, spec.kv_lora_rank)
    return MlaWeights(
        query_down=reader.linear(f"{base}.q_a_proj", spec.hidden_size, spec.q_lora_rank),
        query_norm=reader.norm(f"{base}.q_a_layernorm.weight", spec.rms_norm_eps),
        query_up=reader.linear(f"{base}.q_b_proj", spec.q_lora_rank, spec.heads * key_size),
        latent_down=reader.linear(f"{base}.kv_a_proj_with_mqa", spec.hidden_size, spec.kv_lora_rank),
        latent_norm=reader.norm(f"{base}.kv_a_layernorm.weight", spec.rms_norm_eps),
        absorb=tuple(reader.keep_dense(f"{base}.kv_b_proj", half[:key_size].T) for half in halves),
        unabsorb=tuple(reader.keep_dense(f"{base}.kv_b_proj", half[key_size:]) for half in halves),
        out=reader.linear(f"{base}.o_proj", spec.heads * value_size, spec.hidden_size),
    )


def indexer_weights(spec: Glm5NextSpec, reader: Reader, base: str) -> IndexerWeights:
    """``base`` is the layer's ``….self_attn.indexer``."""
    hidden, key = spec.hidden_size, spec.index_head_dim
    return IndexerWeights(
        query=reader.linear(f"{base}.wq_b", spec.q_lora_rank, spec.index_heads * key),
        key=reader.linear(f"{base}.wk", hidden, key),
        key_norm_weight=reader.array(f"{base}.k_norm.weight"),
        key_norm_bias=reader.array(f"{base}.k_norm.bias"),
        gate=reader.raw_linear(f"{base}.index_kpool_compress_gate"),
        head_weights=reader.linear(f"{base}.weights_proj", hidden, spec.index_heads),
        position_bias=reader.array(f"{base}.index_kpool_compress_ape"),
    )


def hyper_connection(spec: Glm5NextSpec, reader: Reader, site: str) -> HyperConnection:
    """``site`` is the layer's ``….hc_attn`` or ``….hc_ffn``."""
    return HyperConnection(
        HyperConnectionWeights(
            mixer=reader.raw_linear(f"{site}_fn"),
            base=reader.array(f"{site}_base"),
            scale=reader.array(f"{site}_scale"),
        ),
        sinkhorn_iterations=spec.sinkhorn_iterations,
        eps=spec.streams_eps,
        norm_eps=spec.rms_norm_eps,
    )


def clamped_mlp(spec: Glm5NextSpec, reader: Reader, base: str, intermediate_size: int) -> ClampedMlp:
    """``base`` holds gate_proj, up_proj and down_proj."""
    return ClampedMlp(
        gate=reader.linear(f"{base}.gate_proj", spec.hidden_size, intermediate_size),
        up=reader.linear(f"{base}.up_proj", spec.hidden_size, intermediate_size),
        down=reader.linear(f"{base}.down_proj", intermediate_size, spec.hidden_size),
        limit=spec.swiglu_limit,
    )


def moe(spec: Glm5NextSpec, reader: Reader, base: str) -> MoeLayer:
    """``base`` is the layer's ``….mlp``."""
    size = spec.expert_intermediate_size
    shared = None
    if spec.shared_experts:
        shared = clamped_mlp(spec, reader, f"{base}.shared_experts", size * spec.shared_experts)
    return MoeLayer(
        reader.linear(f"{base}.gate", spec.hidden_size, spec.num_experts),
        reader.array(f"{base}.gate.e_score_correction_bias"),
        tuple(clamped_mlp(spec, reader, f"{base}.experts.{n}", size) for n in range(spec.num_experts)),
        shared,
        top_k=spec.experts_per_token,
        normalize=spec.normalize_experts,
        scaling=spec.routed_scaling,
    )
