"""GLM-5.3-Flash before loading: what a checkpoint is, and the bytes it will take. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tandem.cache.sizes import (
    LatentFormat,
    RecurrentShape,
    check_format,
    latent_bytes_per_token,
    pooled_bytes_per_token,
    ring_bytes,
)
from tandem.core.cards import Capability, CardKind
from tandem.core.errors import ModelUnsupportedError, SettingsError
from tandem.core.log import get_logger
from tandem.core.plan import CacheSpec, ModelFootprint, format_bytes
from tandem.loader.base import TensorHeader
from tandem.models.base import ModelSpec
from tandem.models.glm5_next.config import from_config
from tandem.models.glm5_next.cuda_limits import cache_is_eight_bit, check_dimensions, check_formats
from tandem.models.glm5_next.cuda_sizes import (
    GRAPH_BYTES_PER_LAYER,
    attends_in_place,
    workspace_bytes,
    workspace_bytes_per_token,
)
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.tensors import (
    Names,
    Part,
    check_checkpoint,
    embedding_part,
    head_parts,
    layer_parts,
    part_bytes,
)

__all__ = ["Glm5NextSpec", "footprint", "from_config", "from_gguf"]

_log = get_logger("models")


def from_gguf(metadata: Mapping[str, object]) -> Glm5NextSpec:
    """GGUF files of this model are not served: raises ModelUnsupportedError."""
    raise ModelUnsupportedError(
        "GLM-5.3-Flash cannot be loaded from GGUF",
        found=str(metadata.get("general.architecture")),
        remedy="its safetensors or EXL3 folder",
    )


def footprint(
    spec: ModelSpec,
    headers: Mapping[str, TensorHeader],
    *,
    chunk_tokens: int,
    cache_dtype: str,
    card_kind: CardKind = "cpu",
    capability: Capability | None = None,
) -> ModelFootprint:
    """Bytes in memory, part by part; ``cache_dtype`` is fp32, fp16 or q8. The MTP layer is not counted.
    Attention takes least on the one architecture that has a kernel of its own: ``capability`` None = any.

    Raises ModelDamagedError (tensors missing, misshapen, rounded or not explained by the config),
    SettingsError (a cache format that this kind of card does not keep, a chunk that cuts a pool) or
    ModelUnsupportedError (dimensions or weights that CUDA kernels cannot compute). Tensors for pictures are
    skipped with a notice.
    """
    glm = cast(Glm5NextSpec, spec)
    names = Names.of(headers)
    vision = check_checkpoint(glm, names)
    if vision:
        size = format_bytes(sum(headers[name].stored_bytes for name in vision))
        _log.info("%d vision tensors (%s) are skipped: this build reads text only", len(vision), size)
    cache_format = check_format(cache_dtype)
    if chunk_tokens % glm.index_kpool:
        raise SettingsError(
            f"Prompts are computed in whole pools of {glm.index_kpool} tokens",
            found=f"chunks of {chunk_tokens}",
            remedy=f"--chunk with a multiple of {glm.index_kpool}",
        )
    layers = range(glm.num_layers)
    on_cuda = card_kind == "cuda"
    workspace = _workspace_bytes(glm, chunk_tokens)
    if on_cuda:
        cache_is_eight_bit(cache_dtype)  # refuses what is neither
        workspace = workspace_bytes(glm, chunk_tokens, in_place=attends_in_place(glm, capability))
        check_dimensions(glm)
        check_formats(glm, headers, layers, has_head=True)
    return ModelFootprint(
        architecture=glm.architecture,
        layer_weight_bytes=tuple(_bytes(layer_parts(glm, names, i), headers) for i in layers),
        embedding_bytes=_bytes([embedding_part(glm, names)], headers),
        head_bytes=_bytes(head_parts(glm, names), headers),
        tied_head=False,
        layer_cache=tuple(layer_cache(glm, i, cache_format) for i in layers),
        residual_bytes_per_token=4 * glm.residual_width,
        workspace_bytes=workspace,
        workspace_bytes_per_token=workspace_bytes_per_token(glm) if on_cuda else 0.0,
        graph_bytes_per_layer=GRAPH_BYTES_PER_LAYER if on_cuda else 0,
        native_context_tokens=glm.context_tokens,
        checkpoint_bytes=recurrent_shape(glm).checkpoint_bytes * glm.layer_is_mla.count(False),
        idle_expert_bytes=_idle_expert_bytes(glm, names, headers),
        forbidden_cuts=forbidden_cuts(glm),
    )


def forbidden_cuts(spec: Glm5NextSpec) -> tuple[int, ...]:
    """Layers no card may begin at: one from there on uses a selection made on the card before."""
    refused: set[int] = set()
    for layer, shares in enumerate(spec.layer_shares_selection):
        if shares:
            refused.update(range(spec.selection_source(layer) + 1, layer + 1))
    return tuple(sorted(refused))


def recurrent_shape(spec: Glm5NextSpec) -> RecurrentShape:
    return RecurrentShape(spec.kda_heads, spec.kda_head_dim, spec.conv_taps)


def layer_cache(spec: Glm5NextSpec, layer: int, cache_format: LatentFormat) -> CacheSpec:
    """What one layer keeps for a token and for a sequence."""
    if not spec.layer_is_mla[layer]:
        return CacheSpec(0, recurrent_shape(spec).slot_bytes)
    latent = latent_bytes_per_token(spec.kv_lora_rank, cache_format)
    if spec.layer_shares_selection[layer]:
        return CacheSpec(latent)
    pooled = pooled_bytes_per_token(spec.index_head_dim, spec.index_kpool, cache_format)
    return CacheSpec(latent + pooled, ring_bytes(spec.index_head_dim, spec.index_kpool))


def _bytes(parts: list[Part], headers: Mapping[str, TensorHeader]) -> int:
    return sum(part_bytes(part, headers) for part in parts)


def _idle_expert_bytes(spec: Glm5NextSpec, names: Names, headers: Mapping[str, TensorHeader]) -> int:
    """Experts beside the chosen ones; experts may differ in size, so it is the average over all choices."""
    routed = 0
    for layer in range(spec.num_layers):
        if not spec.layer_is_dense[layer]:
            experts = f"{names.layer(layer)}.mlp.experts."
            parts = [part for part in layer_parts(spec, names, layer) if part.name.startswith(experts)]
            routed += _bytes(parts, headers)
    return routed * (spec.num_experts - spec.experts_per_token) // spec.num_experts


def _workspace_bytes(spec: Glm5NextSpec, chunk_tokens: int) -> int:
    """One sublayer's activations of a chunk, beside two copies of the streams."""
    streams = 2 * spec.residual_width
    kda = 8 * spec.kda_width
    mla = 2 * spec.heads * spec.kv_lora_rank + spec.heads * (spec.qk_head_dim + spec.v_head_dim)
    experts = 3 * max(spec.intermediate_size, spec.expert_intermediate_size * (spec.shared_experts or 1))
    scores = 64 * spec.heads * (spec.index_topk + chunk_tokens)
    return 4 * (chunk_tokens * (streams + max(kda, mla, experts)) + scores)
