"""Which tensors the model needs, by their names in checkpoints, and whether a checkpoint holds them. No
torch.

Two sets of names are read: those of the released checkpoint, and those of the EXL3 converter, which fuses a
KDA layer's three projections (``qkv_proj``) and its three convolutions (``conv1d``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tandem.core.errors import ModelDamagedError
from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.quant.base import weight_format
from tandem.quant.exl3.format import is_exl3, read_format

_VISION = re.compile(r"(^|\.)(visual|vision\w*)\.")
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A linear layer, ``name``.weight [out, in] or an EXL3 matrix of that name."""

    name: str
    in_features: int
    out_features: int
    heads: tuple[int, ...] = ()
    """Kept as matrices of their own for so many heads, with so many outputs of a head each: (heads, a, b)."""


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor used as it is, kept in float32 unless it is a ``matrix`` or a ``table``."""

    name: str
    shape: tuple[int, ...]
    kept_as: Literal["float32", "matrix", "table"] = "float32"
    float32_only: bool = False
    """Rounded constants of this kind damage the model; a checkpoint that stores them so is refused."""


Part = Matrix | Array


@dataclass(frozen=True, slots=True)
class Names:
    """How this checkpoint names things."""

    prefix: str
    """``model.language_model`` or, for text-only files, ``model``."""
    available: Mapping[str, TensorHeader]

    @classmethod
    def of(cls, headers: Mapping[str, TensorHeader]) -> Names:
        nested = any(name.startswith("model.language_model.") for name in headers)
        return cls("model.language_model" if nested else "model", headers)

    def layer(self, layer: int) -> str:
        return f"{self.prefix}.layers.{layer}"

    def has_matrix(self, name: str) -> bool:
        return f"{name}.weight" in self.available or is_exl3(name, self.available)


def embedding_part(spec: Glm5NextSpec, names: Names) -> Array:
    return Array(f"{names.prefix}.embed_tokens.weight", (spec.vocab_size, spec.hidden_size), kept_as="table")


def head_parts(spec: Glm5NextSpec, names: Names) -> list[Part]:
    """Final norm and LM head; a tied head is a copy of the embedding."""
    parts: list[Part] = [Array(f"{names.prefix}.norm.weight", (spec.hidden_size,))]
    if head_is_tied(spec, names):
        table = embedding_part(spec, names)
        parts.append(Array(table.name, table.shape, kept_as="matrix"))
    else:
        parts.append(Matrix("lm_head", spec.hidden_size, spec.vocab_size))
    return parts


def head_is_tied(spec: Glm5NextSpec, names: Names) -> bool:
    return spec.tied_head and not names.has_matrix("lm_head")


def layer_parts(spec: Glm5NextSpec, names: Names, layer: int) -> list[Part]:
    """Everything of one layer of the trunk."""
    base = names.layer(layer)
    parts = [*_norms(spec, base), *_hyper_connections(spec, base)]
    if spec.layer_is_mla[layer]:
        parts += _mla(spec, f"{base}.self_attn", indexer=not spec.layer_shares_selection[layer])
    else:
        parts += _kda(spec, names, f"{base}.self_attn")
    if spec.layer_is_dense[layer]:
        parts += mlp_parts(spec, f"{base}.mlp", spec.intermediate_size)
    else:
        parts += _moe(spec, f"{base}.mlp")
    return parts


def mtp_parts(spec: Glm5NextSpec, names: Names) -> list[Part]:
    """The multi-token-prediction layer: an MLA and expert layer of plain residuals behind the trunk."""
    base = names.layer(spec.num_layers)
    return [
        *(
            Array(f"{base}.{name}.weight", (spec.hidden_size,))
            for name in ("enorm", "hnorm", "shared_head.norm")
        ),
        Matrix(f"{base}.eh_proj", 2 * spec.hidden_size, spec.hidden_size),
        *_norms(spec, base),
        *_mla(spec, f"{base}.self_attn", indexer=True),
        *_moe(spec, f"{base}.mlp"),
    ]


def has_mtp(spec: Glm5NextSpec, names: Names) -> bool:
    """Whether the checkpoint brings the layer its config announces; converters may leave out all of it."""
    base = f"{names.layer(spec.num_layers)}."
    return spec.mtp_layers > 0 and any(name.startswith(base) for name in names.available)


def mlp_parts(spec: Glm5NextSpec, base: str, intermediate_size: int) -> list[Part]:
    return [
        Matrix(f"{base}.gate_proj", spec.hidden_size, intermediate_size),
        Matrix(f"{base}.up_proj", spec.hidden_size, intermediate_size),
        Matrix(f"{base}.down_proj", intermediate_size, spec.hidden_size),
    ]


def qkv_names(names: Names, base: str) -> tuple[str, ...]:
    """The fused projection of a KDA layer, or its three."""
    if names.has_matrix(f"{base}.qkv_proj"):
        return (f"{base}.qkv_proj",)
    return tuple(f"{base}.{part}_proj" for part in "qkv")


def conv_names(names: Names, base: str) -> tuple[str, ...]:
    """The fused convolution of a KDA layer, or its three."""
    if f"{base}.conv1d.weight" in names.available:
        return (f"{base}.conv1d.weight",)
    return tuple(f"{base}.{part}_conv1d.weight" for part in "qkv")


def check_checkpoint(spec: Glm5NextSpec, names: Names) -> tuple[str, ...]:
    """Hold the checkpoint against its config. Returns the vision tensors, which are not used.

    Raises ModelDamagedError naming a tensor that is missing, misshapen, of an unusable type, or that the
    config does not explain (as when config.json is another model's).
    """
    known: set[str] = set()
    for part in _all_parts(spec, names):
        known.update(_check(part, names.available))
    mtp_base = f"{names.layer(spec.num_layers)}."
    vision: list[str] = []
    for name in names.available:
        if name in known or (spec.mtp_layers and name.startswith(mtp_base)):
            continue
        if _VISION.search(name):
            vision.append(name)
        elif name != "lm_head.weight":
            raise ModelDamagedError(
                f"The checkpoint holds tensor {name}, which config.json does not explain",
                found=f"{spec.num_layers} layers and {spec.mtp_layers} for drafting in config.json",
                remedy="config.json and weights must come from one checkpoint",
            )
    return tuple(vision)


def part_bytes(part: Part, headers: Mapping[str, TensorHeader]) -> int:
    """Bytes of a checked part in memory."""
    if isinstance(part, Matrix):
        return _matrix_bytes(part, headers)
    if part.kept_as == "float32":
        return 4 * headers[part.name].elements
    if part.kept_as == "table":
        return headers[part.name].stored_bytes
    return _dense_bytes(headers[part.name].dtype, part.name, *part.shape)


def _matrix_bytes(part: Matrix, headers: Mapping[str, TensorHeader]) -> int:
    quantized = is_exl3(part.name, headers)
    if part.heads:
        # One half is turned around (a query enters latent space), so that its outputs are the latent's
        # values.
        heads, keys, values = part.heads
        dtype = "F32" if quantized else headers[f"{part.name}.weight"].dtype
        latent = part.in_features
        turned = _dense_bytes(dtype, part.name, latent, keys)
        return heads * (turned + _dense_bytes(dtype, part.name, values, latent))
    if quantized:
        return read_format(part.name, headers, part.in_features, part.out_features).resident_bytes
    name = f"{part.name}.weight"
    return _dense_bytes(headers[name].dtype, name, part.out_features, part.in_features)


def _dense_bytes(dtype: str, name: str, out_features: int, in_features: int) -> int:
    return weight_format(dtype, name).memory_bytes(out_features, in_features)


def _all_parts(spec: Glm5NextSpec, names: Names) -> Iterator[Part]:
    yield embedding_part(spec, names)
    yield from head_parts(spec, names)
    for layer in range(spec.num_layers):
        yield from layer_parts(spec, names, layer)
    if has_mtp(spec, names):
        yield from mtp_parts(spec, names)


def _check(part: Part, headers: Mapping[str, TensorHeader]) -> tuple[str, ...]:
    """The names of the part's tensors, which are there and fit."""
    if isinstance(part, Matrix):
        if is_exl3(part.name, headers):
            return read_format(part.name, headers, part.in_features, part.out_features).tensor_names
        part = Array(f"{part.name}.weight", (part.out_features, part.in_features))
    header = headers.get(part.name)
    if header is None:
        raise ModelDamagedError(
            f"The checkpoint lacks tensor {part.name}",
            found=f"{len(headers)} other tensors",
            remedy="config.json and weights must come from one checkpoint, downloaded whole",
        )
    if header.shape != part.shape:
        raise ModelDamagedError(
            f"Tensor {part.name} must have shape {list(part.shape)} according to config.json",
            found=f"{list(header.shape)}",
            remedy="config.json and weights must come from one checkpoint",
        )
    if header.dtype not in _FLOATS:
        raise ModelDamagedError(f"Tensor {part.name} must hold floating-point numbers", found=header.dtype)
    if part.float32_only and header.dtype != "F32":
        raise ModelDamagedError(
            f"Tensor {part.name} must be F32: rounded constants of the residual streams garble the output",
            found=header.dtype,
            remedy="a conversion that keeps hc_*_scale and hc_*_base in float32",
        )
    return (part.name,)


def _norms(spec: Glm5NextSpec, base: str) -> list[Part]:
    return [
        Array(f"{base}.{name}.weight", (spec.hidden_size,))
        for name in ("input_layernorm", "post_attention_layernorm")
    ]


def _hyper_connections(spec: Glm5NextSpec, base: str) -> list[Part]:
    coefficients = (2 + spec.streams) * spec.streams
    parts: list[Part] = []
    for site in ("attn", "ffn"):
        parts += [
            Array(f"{base}.hc_{site}_fn", (coefficients, spec.residual_width), kept_as="matrix"),
            Array(f"{base}.hc_{site}_base", (coefficients,), float32_only=True),
            Array(f"{base}.hc_{site}_scale", (3,), float32_only=True),
        ]
    return parts


def _kda(spec: Glm5NextSpec, names: Names, base: str) -> list[Part]:
    hidden, width, rank = spec.hidden_size, spec.kda_width, spec.kda_head_dim
    qkv, conv = qkv_names(names, base), conv_names(names, base)
    return [
        *(Matrix(name, hidden, 3 * width // len(qkv)) for name in qkv),
        *(Array(name, (3 * width // len(conv), 1, spec.conv_taps)) for name in conv),
        Matrix(f"{base}.f_a_proj", hidden, rank),
        Matrix(f"{base}.f_b_proj", rank, width),
        Matrix(f"{base}.b_proj", hidden, spec.kda_heads),
        Matrix(f"{base}.g_a_proj", hidden, rank),
        Matrix(f"{base}.g_b_proj", rank, width),
        Array(f"{base}.A_log", (spec.kda_heads,)),
        Array(f"{base}.dt_bias", (width,)),
        Array(f"{base}.o_norm.weight", (spec.kda_head_dim,)),
        Matrix(f"{base}.o_proj", width, hidden),
    ]


def _mla(spec: Glm5NextSpec, base: str, *, indexer: bool) -> list[Part]:
    hidden, latent = spec.hidden_size, spec.kv_lora_rank
    parts: list[Part] = [
        Matrix(f"{base}.q_a_proj", hidden, spec.q_lora_rank),
        Array(f"{base}.q_a_layernorm.weight", (spec.q_lora_rank,)),
        Matrix(f"{base}.q_b_proj", spec.q_lora_rank, spec.heads * spec.qk_head_dim),
        Matrix(f"{base}.kv_a_proj_with_mqa", hidden, latent),
        Array(f"{base}.kv_a_layernorm.weight", (latent,)),
        Matrix(
            f"{base}.kv_b_proj",
            latent,
            spec.heads * (spec.qk_head_dim + spec.v_head_dim),
            heads=(spec.heads, spec.qk_head_dim, spec.v_head_dim),
        ),
        Matrix(f"{base}.o_proj", spec.heads * spec.v_head_dim, hidden),
    ]
    if indexer:
        key = spec.index_head_dim
        parts += [
            Matrix(f"{base}.indexer.wq_b", spec.q_lora_rank, spec.index_heads * key),
            Matrix(f"{base}.indexer.wk", hidden, key),
            Array(f"{base}.indexer.k_norm.weight", (key,)),
            Array(f"{base}.indexer.k_norm.bias", (key,)),
            Matrix(f"{base}.indexer.weights_proj", hidden, spec.index_heads),
            Array(f"{base}.indexer.index_kpool_compress_ape", (spec.index_kpool, key)),
            Array(f"{base}.indexer.index_kpool_compress_gate", (key, hidden), kept_as="matrix"),
        ]
    return parts


def _moe(spec: Glm5NextSpec, base: str) -> list[Part]:
    parts: list[Part] = [
        Matrix(f"{base}.gate", spec.hidden_size, spec.num_experts),
        Array(f"{base}.gate.e_score_correction_bias", (spec.num_experts,)),
    ]
    for expert in range(spec.num_experts):
        parts += mlp_parts(spec, f"{base}.experts.{expert}", spec.expert_intermediate_size)
    if spec.shared_experts:
        size = spec.expert_intermediate_size * spec.shared_experts
        parts += mlp_parts(spec, f"{base}.shared_experts", size)
    return parts
