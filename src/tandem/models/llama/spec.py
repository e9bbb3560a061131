"""Llama-like checkpoints before loading: what they are, and the bytes they will take. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tandem.cache.paged import PagedSpec
from tandem.core.cards import Capability, CardKind
from tandem.core.plan import ModelFootprint
from tandem.loader.base import TensorHeader
from tandem.models.base import ModelSpec
from tandem.models.llama.config import from_config
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.llama.metadata import from_gguf
from tandem.models.llama.tensors import (
    check_tensors,
    head_is_tied,
    layer_shapes,
    layer_tensor,
    model_tensor,
)
from tandem.quant.base import common_format

__all__ = ["LlamaSpec", "footprint", "from_config", "from_gguf"]

_FUSED = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
_SMALLEST_PAGE_TOKENS = 16


def footprint(
    spec: ModelSpec,
    headers: Mapping[str, TensorHeader],
    *,
    chunk_tokens: int,
    cache_dtype: str,
    card_kind: CardKind = "cpu",
    capability: Capability | None = None,
) -> ModelFootprint:
    """Bytes in memory, part by part, the same on every kind of card; ``cache_dtype`` is fp32 or fp16.

    Raises ModelDamagedError (tensors missing or misshapen), ModelUnsupportedError (tensor types or extra
    tensors) or SettingsError (cache format).
    """
    llama = cast(LlamaSpec, spec)
    check_tensors(llama, headers)
    H, V = llama.hidden_size, llama.vocab_size
    tied = head_is_tied(llama, headers)
    head_bytes = 0 if tied else _tiled_bytes(headers, [model_tensor(llama, "head")], V, H)
    cache = PagedSpec(llama.kv_heads, llama.head_dim, _SMALLEST_PAGE_TOKENS, cache_dtype)
    return ModelFootprint(
        architecture=llama.architecture,
        layer_weight_bytes=tuple(_layer_bytes(llama, headers, i) for i in range(llama.num_layers)),
        embedding_bytes=_tiled_bytes(headers, [model_tensor(llama, "embedding")], V, H),
        head_bytes=head_bytes + 4 * H,
        tied_head=tied,
        layer_cache=(cache.cache_spec,) * llama.num_layers,
        residual_bytes_per_token=4 * H,
        workspace_bytes=_workspace_bytes(llama, chunk_tokens),
        native_context_tokens=llama.context_tokens,
    )


def _tiled_bytes(
    headers: Mapping[str, TensorHeader], names: list[str], out_features: int, in_features: int
) -> int:
    form = common_format({name: headers[name].dtype for name in names})
    return form.memory_bytes(out_features, in_features)


def _layer_bytes(spec: LlamaSpec, headers: Mapping[str, TensorHeader], layer: int) -> int:
    shapes = layer_shapes(spec)
    total = sum(4 * shape[0] for shape in shapes.values() if len(shape) == 1)
    for roles in _FUSED:
        names = [layer_tensor(spec, layer, role) for role in roles]
        total += _tiled_bytes(headers, names, sum(shapes[r][0] for r in roles), shapes[roles[0]][1])
    return total


def _workspace_bytes(spec: LlamaSpec, chunk_tokens: int) -> int:
    """One layer's activations of a chunk, and their copy in the order the linear kernels read."""
    heads = (2 * spec.heads + 2 * spec.kv_heads) * spec.head_dim
    widest = max(spec.intermediate_size, spec.hidden_size, spec.heads * spec.head_dim)
    row = 2 * spec.hidden_size + heads + spec.intermediate_size + widest + spec.rope.rotary_dim
    return 4 * row * chunk_tokens
