"""Builds a stage of GLM-5.3-Flash from a checkpoint: caches allocated, tensors read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.latent import LatentCache
from tandem.cache.pooled_index import PooledIndexCache
from tandem.cache.recurrent import RecurrentSlots
from tandem.cache.sizes import LatentFormat, check_format, check_page_tokens
from tandem.core.errors import BudgetError
from tandem.core.plan import StagePlan
from tandem.layers.indexer import Indexer
from tandem.layers.kda import KdaLayer
from tandem.layers.mla import MlaLayer
from tandem.loader.base import TensorSource
from tandem.models.base import StageModel
from tandem.models.glm5_next import weights
from tandem.models.glm5_next.blocks import Block
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.reader import Reader
from tandem.models.glm5_next.spec import recurrent_shape
from tandem.models.glm5_next.stage import Glm5NextStage, Head
from tandem.models.glm5_next.tensors import embedding_part, head_is_tied


@dataclass(frozen=True, slots=True)
class CacheSizes:
    total_pages: int
    page_tokens: int
    max_slots: int
    latent_format: LatentFormat

    @property
    def total_tokens(self) -> int:
        return self.total_pages * self.page_tokens


class StageBuilder:
    """Puts layers together and counts the bytes of their caches."""

    def __init__(self, spec: Glm5NextSpec, reader: Reader, sizes: CacheSizes) -> None:
        check_page_tokens(sizes.page_tokens, spec.index_kpool)
        self.cache_bytes = 0
        self._spec = spec
        self._reader = reader
        self._sizes = sizes

    def block(self, layer: int) -> Block:
        """One layer of the trunk."""
        spec, reader = self._spec, self._reader
        base = reader.names.layer(layer)
        attention: KdaLayer | MlaLayer
        if spec.layer_is_mla[layer]:
            attention = self.mla(f"{base}.self_attn", indexer=not spec.layer_shares_selection[layer])
        else:
            attention = self._kda(f"{base}.self_attn")
        dense = spec.layer_is_dense[layer]
        return Block(
            attention_site=weights.hyper_connection(spec, reader, f"{base}.hc_attn"),
            attention_norm=reader.norm(f"{base}.input_layernorm.weight", spec.rms_norm_eps),
            attention=attention,
            feed_forward_site=weights.hyper_connection(spec, reader, f"{base}.hc_ffn"),
            feed_forward_norm=reader.norm(f"{base}.post_attention_layernorm.weight", spec.rms_norm_eps),
            feed_forward=weights.clamped_mlp(spec, reader, f"{base}.mlp", spec.intermediate_size)
            if dense
            else weights.moe(spec, reader, f"{base}.mlp"),
        )

    def mla(self, base: str, *, indexer: bool) -> MlaLayer:
        spec, sizes = self._spec, self._sizes
        latents = LatentCache(sizes.total_tokens, spec.kv_lora_rank, sizes.latent_format)
        self.cache_bytes += latents.allocated_bytes
        return MlaLayer(
            weights.mla_weights(spec, self._reader, base),
            latents,
            self._indexer(f"{base}.indexer") if indexer else None,
            page_tokens=sizes.page_tokens,
            key_size=spec.qk_head_dim,
        )

    def _indexer(self, base: str) -> Indexer:
        spec, sizes = self._spec, self._sizes
        pools = PooledIndexCache(
            sizes.total_tokens,
            sizes.max_slots,
            spec.index_kpool,
            spec.index_head_dim,
            torch.float32 if sizes.latent_format == "fp32" else torch.float16,
        )
        self.cache_bytes += pools.allocated_bytes
        return Indexer(
            weights.indexer_weights(spec, self._reader, base),
            pools,
            heads=spec.index_heads,
            topk_tokens=spec.index_topk,
            page_tokens=sizes.page_tokens,
        )

    def _kda(self, base: str) -> KdaLayer:
        spec = self._spec
        slots = RecurrentSlots(recurrent_shape(spec), self._sizes.max_slots)
        self.cache_bytes += slots.allocated_bytes
        return KdaLayer(
            weights.kda_weights(spec, self._reader, base),
            slots,
            lower_bound=spec.decay_lower_bound,
            norm_eps=spec.rms_norm_eps,
        )

    def head(self) -> Head:
        spec, reader = self._spec, self._reader
        if head_is_tied(spec, reader.names):
            vocabulary = reader.raw_linear(embedding_part(spec, reader.names).name)
        else:
            vocabulary = reader.linear("lm_head", spec.hidden_size, spec.vocab_size)
        return Head(reader.norm(f"{reader.names.prefix}.norm.weight", spec.rms_norm_eps), vocabulary)


def build_stage(
    spec: Glm5NextSpec,
    weights: TensorSource,
    stage: StagePlan,
    *,
    total_pages: int,
    page_tokens: int,
    chunk_tokens: int,
    max_slots: int,
    cache_dtype: str,
) -> StageModel:
    """Read the stage's tensors and allocate its caches. ``cache_dtype``: fp32, fp16 or q8 latents.

    Raises ModelDamagedError, SettingsError (pages that cut pools, a format the card cannot keep), BudgetError
    (a cut between layers that share a selection) or ModelUnsupportedError (what a CUDA card cannot compute).
    """
    _check_cut(spec, stage)
    if stage.card.kind == "cuda":
        from tandem.models.glm5_next.cuda_build import build_cuda_stage

        return build_cuda_stage(
            spec,
            weights,
            stage,
            total_pages=total_pages,
            page_tokens=page_tokens,
            chunk_tokens=chunk_tokens,
            max_slots=max_slots,
            cache_dtype=cache_dtype,
        )
    reader = Reader(weights)
    builder = StageBuilder(
        spec, reader, CacheSizes(total_pages, page_tokens, max_slots, check_format(cache_dtype))
    )
    blocks = tuple(builder.block(layer) for layer in range(stage.first_layer, stage.end_layer))
    embedding = reader.table(embedding_part(spec, reader.names).name) if stage.has_embedding else None
    head = builder.head() if stage.has_head else None
    return Glm5NextStage(
        spec,
        blocks,
        embedding=embedding,
        head=head,
        weight_bytes=reader.weight_bytes,
        cache_bytes=builder.cache_bytes,
    )


def _check_cut(spec: Glm5NextSpec, stage: StagePlan) -> None:
    for layer in range(stage.first_layer, stage.end_layer):
        if spec.layer_shares_selection[layer] and spec.selection_source(layer) < stage.first_layer:
            raise BudgetError(
                f"Layer {layer} attends to the tokens that layer {spec.selection_source(layer)} chooses,"
                " so both must be on one card",
                found=f"a cut before layer {stage.first_layer}",
                remedy="another split of the layers, or fewer cards",
            )
