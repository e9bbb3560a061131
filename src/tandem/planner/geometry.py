"""The dimensions of a GLM-5.3-Flash-like model that bytes depend on, and the bytes of its parts.

Facts: 45 layers, of which every fourth is multi-head latent attention (MLA) with a sparse indexer and the
others Kimi delta attention (KDA) with a constant state; a few dense layers, then mixture-of-experts; four
residual streams (mHC). Every dimension is read from ``config.json``; a missing one is an error, because a
library's default may differ from the released value (``index_kpool`` is 4 there, 16 in one library).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.errors import ModelUnsupportedError

HALF = 2
SINGLE = 4


@dataclass(frozen=True, slots=True)
class BitWidths:
    """Bits per weight of the quantized groups; what an EXL3 converter chose from its priorities."""

    experts: float
    attention: float
    shared: float
    dense: float
    head: float
    mtp: float = 4.0


@dataclass(frozen=True, slots=True)
class Geometry:
    """Dimensions only; sizes of vectors in elements."""

    hidden_size: int
    vocab_size: int
    layer_is_mla: tuple[bool, ...]
    layer_is_dense: tuple[bool, ...]
    layer_has_indexer: tuple[bool, ...]
    intermediate_size: int
    expert_intermediate_size: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    v_head_dim: int
    rope_head_dim: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    kda_heads: int
    kda_head_dim: int
    conv_kernel: int
    residual_streams: int
    context_tokens: int

    @property
    def num_layers(self) -> int:
        return len(self.layer_is_mla)

    @property
    def num_mla_layers(self) -> int:
        return sum(self.layer_is_mla)

    @property
    def num_kda_layers(self) -> int:
        return self.num_layers - self.num_mla_layers

    @property
    def kda_width(self) -> int:
        return self.kda_heads * self.kda_head_dim


def _field(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise ModelUnsupportedError(
            f"config.json needs {name!r} to size this model",
            found=f"fields {', '.join(sorted(config)[:6])}, …",
            remedy="the model's own config.json, whole",
        )
    return config[name]


def geometry_from_config(config: Mapping[str, Any]) -> Geometry:
    """Read ``config.json`` (or its ``text_config``). Raises ModelUnsupportedError naming a missing field."""
    text: Mapping[str, Any] = config.get("text_config", config)
    linear: Mapping[str, Any] = text.get("linear_attn_config") or {
        "num_heads": text.get("linear_num_heads"),
        "head_dim": text.get("linear_head_dim"),
        "short_conv_kernel_size": text.get("linear_conv_kernel_dim"),
    }
    layer_types = tuple(_field(text, "layer_types"))
    mla = tuple(kind != "linear_attention" for kind in layer_types)
    indexers = tuple(text.get("indexer_types") or ("full",) * len(mla))
    dense_layers = int(_field(text, "first_k_dense_replace"))
    return Geometry(
        hidden_size=int(_field(text, "hidden_size")),
        vocab_size=int(_field(text, "vocab_size")),
        layer_is_mla=mla,
        layer_is_dense=tuple(i < dense_layers for i in range(len(mla))),
        layer_has_indexer=tuple(m and kind == "full" for m, kind in zip(mla, indexers, strict=True)),
        intermediate_size=int(_field(text, "intermediate_size")),
        expert_intermediate_size=int(_field(text, "moe_intermediate_size")),
        num_experts=int(_field(text, "n_routed_experts")),
        experts_per_token=int(_field(text, "num_experts_per_tok")),
        num_shared_experts=int(_field(text, "n_shared_experts")),
        attention_heads=int(_field(text, "num_attention_heads")),
        q_lora_rank=int(_field(text, "q_lora_rank")),
        kv_lora_rank=int(_field(text, "kv_lora_rank")),
        qk_head_dim=int(_field(text, "qk_nope_head_dim")) + int(_field(text, "qk_rope_head_dim")),
        v_head_dim=int(_field(text, "v_head_dim")),
        rope_head_dim=int(_field(text, "qk_rope_head_dim")),
        index_heads=int(_field(text, "index_n_heads")),
        index_head_dim=int(_field(text, "index_head_dim")),
        index_topk=int(_field(text, "index_topk")),
        index_kpool=int(_field(text, "index_kpool")),
        kda_heads=int(_field(linear, "num_heads")),
        kda_head_dim=int(_field(linear, "head_dim")),
        conv_kernel=int(_field(linear, "short_conv_kernel_size")),
        residual_streams=int(_field(text, "hc_mult")),
        context_tokens=int(_field(text, "max_position_embeddings")),
    )


def exl3_bytes(in_features: int, out_features: int, bits: float) -> int:
    """An EXL3 linear: the trellis plus one fp16 scale per input and output (both padded to 128)."""
    rows, columns = (-(-n // 128) * 128 for n in (in_features, out_features))
    return round(bits * rows * columns / 8) + HALF * (rows + columns)


def mlp_bytes(geometry: Geometry, intermediate: int, bits: float) -> int:
    """Gate, up and down of one SwiGLU block."""
    hidden = geometry.hidden_size
    return 2 * exl3_bytes(hidden, intermediate, bits) + exl3_bytes(intermediate, hidden, bits)


def kda_bytes(geometry: Geometry, bits: float) -> int:
    """Query, key, value and output quantized; gates, convolutions and norms as stored."""
    hidden, width, heads = geometry.hidden_size, geometry.kda_width, geometry.kda_heads
    quantized = 3 * exl3_bytes(hidden, width, bits) + exl3_bytes(width, hidden, bits)
    convolution_and_norm = HALF * (3 * width * geometry.conv_kernel + geometry.kda_head_dim)
    decay = SINGLE * (heads + width)
    return quantized + kda_gate_bytes(geometry) + convolution_and_norm + decay


def kda_gate_bytes(geometry: Geometry) -> int:
    """The five small fp16 projections of a KDA layer: b, f_a, f_b, g_a, g_b."""
    hidden, width, rank = geometry.hidden_size, geometry.kda_width, geometry.kda_head_dim
    return HALF * (geometry.kda_heads * hidden + 2 * (rank * hidden + width * rank))


def mla_bytes(geometry: Geometry, bits: float, *, indexer: bool) -> int:
    """q_a, q_b, kv_a, o quantized; kv_b in fp16, since it is absorbed into queries and outputs."""
    g = geometry
    total = exl3_bytes(g.hidden_size, g.q_lora_rank, bits)
    total += exl3_bytes(g.q_lora_rank, g.attention_heads * g.qk_head_dim, bits)
    total += exl3_bytes(g.hidden_size, g.kv_lora_rank + g.rope_head_dim, bits)
    total += exl3_bytes(g.attention_heads * g.v_head_dim, g.hidden_size, bits)
    nope = g.qk_head_dim - g.rope_head_dim
    total += HALF * g.kv_lora_rank * g.attention_heads * (nope + g.v_head_dim)
    total += HALF * (g.q_lora_rank + g.kv_lora_rank)
    if indexer:
        total += exl3_bytes(g.q_lora_rank, g.index_heads * g.index_head_dim, bits)
        total += HALF * g.hidden_size * (2 * g.index_head_dim + g.index_heads)
        total += HALF * 2 * g.index_head_dim + SINGLE * g.index_kpool * g.index_head_dim
    return total


def hyper_connection_bytes(geometry: Geometry) -> int:
    """Both sublayers' mHC mixers, fp32."""
    streams = geometry.residual_streams
    mixes = streams * (streams + 2)
    return 2 * SINGLE * (mixes * streams * geometry.hidden_size + mixes + 3)


def layer_bytes(geometry: Geometry, layer: int, bits: BitWidths) -> int:
    """Resident bytes of one layer."""
    g = geometry
    if g.layer_is_mla[layer]:
        mixer = mla_bytes(g, bits.attention, indexer=g.layer_has_indexer[layer])
    else:
        mixer = kda_bytes(g, bits.attention)
    if g.layer_is_dense[layer]:
        feed_forward = mlp_bytes(g, g.intermediate_size, bits.dense)
    else:
        experts = g.num_experts * mlp_bytes(g, g.expert_intermediate_size, bits.experts)
        shared = g.num_shared_experts * mlp_bytes(g, g.expert_intermediate_size, bits.shared)
        feed_forward = experts + shared + HALF * g.num_experts * g.hidden_size + SINGLE * g.num_experts
    norms = 2 * HALF * g.hidden_size
    return mixer + feed_forward + hyper_connection_bytes(g) + norms


def embedding_bytes(geometry: Geometry) -> int:
    return HALF * geometry.vocab_size * geometry.hidden_size


def head_bytes(geometry: Geometry, bits: BitWidths) -> int:
    """LM head and final norm."""
    return exl3_bytes(geometry.hidden_size, geometry.vocab_size, bits.head) + HALF * geometry.hidden_size


def mtp_bytes(geometry: Geometry, bits: BitWidths) -> int:
    """The multi-token-prediction layer: projection of [embedding ; hidden], MLA with indexer, and experts."""
    g = geometry
    experts = (g.num_experts + g.num_shared_experts) * mlp_bytes(g, g.expert_intermediate_size, bits.mtp)
    projection = exl3_bytes(2 * g.hidden_size, g.hidden_size, bits.mtp)
    return (
        experts
        + projection
        + mla_bytes(g, bits.mtp, indexer=True)
        + HALF * (5 * g.hidden_size + g.num_experts * g.hidden_size)
    )


GLM_5_3_FLASH = Geometry(
    hidden_size=4096,
    vocab_size=154_880,
    layer_is_mla=tuple(i % 4 == 3 for i in range(45)),
    layer_is_dense=tuple(i < 3 for i in range(45)),
    layer_has_indexer=tuple(i % 4 == 3 for i in range(45)),
    intermediate_size=12_288,
    expert_intermediate_size=2048,
    num_experts=288,
    experts_per_token=8,
    num_shared_experts=1,
    attention_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_head_dim=256,
    v_head_dim=256,
    rope_head_dim=0,
    index_heads=32,
    index_head_dim=128,
    index_topk=2048,
    index_kpool=4,
    kda_heads=64,
    kda_head_dim=128,
    conv_kernel=4,
    residual_streams=4,
    context_tokens=1_048_576,
)
"""The released model, for planning before any file is there."""

EXL3_3_05_BITS = BitWidths(experts=3, attention=5, shared=5, dense=4, head=6, mtp=4)
"""The 3.05-bit pack, inferred from the converter's priorities and the published total (±0.5 GiB)."""
