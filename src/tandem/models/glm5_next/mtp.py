"""The multi-token-prediction layer: from a token and the trunk's state before it, the state after it.

It lies behind the trunk in the checkpoint (layer 45 of the released model) and is one attention and expert
layer with plain residuals, without the trunk's streams. With h(K−1) the trunk's state after its final norm,
and t(K) the token that follows::

    x = eh_proj([enorm(embedding(t(K))) ‖ hnorm(h(K−1))])
    x = x + attention(input_layernorm(x));  x = x + experts(post_attention_layernorm(x))
    h'(K) = shared_head.norm(x)             the trunk's head makes of it a guess at t(K+1)

To draft further, h'(K) takes the place of the trunk's state one position later. It keeps latents and pooled
keys of its own, by the trunk's pages and slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.errors import ModelUnsupportedError
from tandem.layers.mla import MlaLayer
from tandem.layers.moe import MoeLayer
from tandem.layers.operator import Operator
from tandem.loader.base import TensorSource
from tandem.models.glm5_next import weights
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.model import CacheSizes, StageBuilder
from tandem.models.glm5_next.reader import Reader
from tandem.models.glm5_next.tensors import has_mtp


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """R rows of D values. ``embedded``: embeddings of the rows' tokens; ``state``: what precedes them."""

    embedding_norm: Operator
    state_norm: Operator
    combine: Operator
    attention_norm: Operator
    attention: MlaLayer
    feed_forward_norm: Operator
    feed_forward: MoeLayer
    out_norm: Operator
    weight_bytes: int
    cache_bytes: int

    def forward_rows(self, embedded: torch.Tensor, state: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        """float32 [R, D] each → [R, D], ready for the trunk's head."""
        x = self._combined(embedded, state)
        x = x + self.attention.forward_rows(self.attention_norm(x), layout, None)[0]
        return self._finish(x)

    def forward_prefill(
        self, embedded: torch.Tensor, state: torch.Tensor, layout: PrefillLayout
    ) -> torch.Tensor:
        """float32 [C, D] each → [C, D]; rows at and after ``layout.length`` are unspecified."""
        x = self._combined(embedded, state)
        x = x + self.attention.forward_prefill(self.attention_norm(x), layout, None)[0]
        return self._finish(x)

    def _combined(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self.combine(torch.cat((self.embedding_norm(embedded), self.state_norm(state)), dim=1))

    def _finish(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_norm(x + self.feed_forward(self.feed_forward_norm(x)))


def build_mtp(spec: Glm5NextSpec, source: TensorSource, sizes: CacheSizes) -> MtpLayer:
    """Read the layer and allocate its caches. Raises ModelUnsupportedError if the checkpoint has none."""
    reader = Reader(source)
    if not has_mtp(spec, reader.names):
        raise ModelUnsupportedError(
            "This checkpoint has no layer for multi-token prediction",
            found=f"no {reader.names.layer(spec.num_layers)}; config.json announces {spec.mtp_layers}",
            remedy="another drafter, or a conversion that keeps the layer",
        )
    builder = StageBuilder(spec, reader, sizes)
    base, eps = reader.names.layer(spec.num_layers), spec.rms_norm_eps
    parts = {
        "embedding_norm": reader.norm(f"{base}.enorm.weight", eps),
        "state_norm": reader.norm(f"{base}.hnorm.weight", eps),
        "combine": reader.linear(f"{base}.eh_proj", 2 * spec.hidden_size, spec.hidden_size),
        "attention_norm": reader.norm(f"{base}.input_layernorm.weight", eps),
        "feed_forward_norm": reader.norm(f"{base}.post_attention_layernorm.weight", eps),
        "out_norm": reader.norm(f"{base}.shared_head.norm.weight", eps),
    }
    attention = builder.mla(f"{base}.self_attn", indexer=True)
    feed_forward = weights.moe(spec, reader, f"{base}.mlp")
    return MtpLayer(
        **parts,
        attention=attention,
        feed_forward=feed_forward,
        weight_bytes=reader.weight_bytes,
        cache_bytes=builder.cache_bytes,
    )
