"""What the CUDA kernels of GLM-5.3-Flash can compute, told from headers before anything is read. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tandem.core.errors import ModelUnsupportedError, SettingsError
from tandem.kernels.sampling.operands import MOST_TOKENS
from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.tensors import (
    Matrix,
    Names,
    Part,
    head_parts,
    layer_parts,
)
from tandem.quant.exl3.format import is_exl3

_BLOCK = 128
_WIDEST = 8192
_CACHE_FORMATS = {"fp16": False, "q8": True}
_PLAIN = frozenset(
    ("kv_b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "b_proj", "wk", "weights_proj", "gate")
)
"""Matrices that are kept in fp16 and must not be EXL3; all others may be either."""
_CPU = "--cards cpu:1"


def cache_is_eight_bit(cache_format: str) -> bool:
    """Raises SettingsError for a format that only CPU cards keep."""
    if cache_format not in _CACHE_FORMATS:
        raise SettingsError(
            "A CUDA card cannot keep its cache in that format",
            found=cache_format,
            remedy=" or ".join(f"--kv {name}" for name in _CACHE_FORMATS),
        )
    return _CACHE_FORMATS[cache_format]


def check_dimensions(spec: Glm5NextSpec) -> None:
    """Raises ModelUnsupportedError naming the first dimension that the kernels were not written for."""
    for name, found, wanted in _unmet(spec):
        raise ModelUnsupportedError(
            f"This model's {name} cannot be computed on a CUDA card",
            found=str(found),
            remedy=f"a model with {wanted}, or {_CPU}",
        )


def _unmet(spec: Glm5NextSpec) -> Iterator[tuple[str, object, str]]:
    exact = (
        ("residual streams", spec.streams, 4),
        ("convolution taps", spec.conv_taps, 4),
        ("recurrent head size", spec.kda_head_dim, _BLOCK),
        ("index head size", spec.index_head_dim, _BLOCK),
    )
    yield from ((name, found, str(wanted)) for name, found, wanted in exact if found != wanted)
    blocks = (
        ("hidden size", spec.hidden_size),
        ("query rank", spec.q_lora_rank),
        ("query and key size", spec.qk_head_dim),
        ("value size", spec.v_head_dim),
    )
    for name, size in blocks:
        if size % _BLOCK or size > _WIDEST * 4:
            yield name, size, f"a multiple of {_BLOCK}"
    if spec.hidden_size > _WIDEST:
        yield "hidden size", spec.hidden_size, f"at most {_WIDEST}"
    latent = spec.kv_lora_rank
    if latent & (latent - 1) or not _BLOCK <= latent <= 1024:
        yield "latent size", latent, "128, 256, 512 or 1024"
    if spec.experts_per_token + spec.shared_experts > 15 or spec.num_experts > 1023:
        yield "number of experts", f"{spec.experts_per_token} of {spec.num_experts}", "14 of 1023 at most"
    if spec.vocab_size > MOST_TOKENS:
        yield "vocabulary", spec.vocab_size, f"{MOST_TOKENS} tokens at most"
    if any(spec.layer_shares_selection):
        yield "selection shared between layers", "shared", "an indexer in every MLA layer"


def check_formats(
    spec: Glm5NextSpec, headers: Mapping[str, TensorHeader], layers: range, *, has_head: bool
) -> None:
    """Raises ModelUnsupportedError naming a matrix that is EXL3 and must not be."""
    names = Names.of(headers)
    for part in _parts(spec, names, layers, has_head=has_head):
        plain = isinstance(part, Matrix) and part.name.rpartition(".")[2] in _PLAIN
        if plain and is_exl3(part.name, headers):
            raise ModelUnsupportedError(
                f"{part.name} cannot be multiplied on a CUDA card",
                found="EXL3",
                remedy=f"a conversion that leaves it as it is, or {_CPU}",
            )


def _parts(spec: Glm5NextSpec, names: Names, layers: range, *, has_head: bool) -> Iterator[Part]:
    for layer in layers:
        yield from layer_parts(spec, names, layer)
    if has_head:
        yield from head_parts(spec, names)
