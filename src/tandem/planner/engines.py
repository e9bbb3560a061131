"""What an engine keeps on a card for a GLM-5.3-Flash-like model: ours, and the one of the source recipe.

The peer's model exists to be checked against published facts (which contexts load, and that 448K and 512K
fail at the last layer), and to show side by side what our layout of the cache changes.

Bytes a token and MLA layer (r = latent width, d = index head width, p = pool size)::

                 latent        scales      raw key ‖ gate     pooled keys
    peer  fp16   2r            -           2·2d               2d/p
          q8     r             2r/32       2·2d               2d/p
    ours  fp16   2r            -           (a ring per        2d/p
          q8     r             2r/32        sequence)         2d/p
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem.core.errors import SettingsError
from tandem.core.plan import GIB, MIB, CacheSpec, ModelFootprint
from tandem.planner.geometry import (
    HALF,
    SINGLE,
    BitWidths,
    Geometry,
    embedding_bytes,
    exl3_bytes,
    head_bytes,
    kda_gate_bytes,
    layer_bytes,
    mtp_bytes,
)

KvFormat = Literal["fp16", "q8", "q6", "q4"]
Drafter = Literal["none", "dflash2", "mtp"]

_LATENT_BITS: dict[str, int] = {"fp16": 16, "q8": 8, "q6": 6, "q4": 4}
_GROUP = 32
MAX_ROWS = 16
"""Rows a verify step can leave pending in a recurrent slot."""


def latent_bytes(geometry: Geometry, kv_format: str) -> float:
    """Latent vector and its group scales, one token, one MLA layer. Raises SettingsError."""
    if kv_format not in _LATENT_BITS:
        raise SettingsError(
            f"KV cache format {kv_format!r}",
            found="a name this planner does not know",
            remedy="fp16, q8, q6 or q4",
        )
    width = geometry.kv_lora_rank + geometry.rope_head_dim
    scales = 0.0 if kv_format == "fp16" else HALF * width / _GROUP
    return width * _LATENT_BITS[kv_format] / 8 + scales


def pooled_key_bytes(geometry: Geometry) -> float:
    return HALF * geometry.index_head_dim / geometry.index_kpool


def tandem_layer_cache(geometry: Geometry, layer: int, kv_format: str) -> CacheSpec:
    """Our cache of one layer: paged latent and pooled keys, or a recurrent slot with its pending rows."""
    g = geometry
    if g.layer_is_mla[layer]:
        if not g.layer_has_indexer[layer]:
            return CacheSpec(latent_bytes(g, kv_format))
        tail_rows = g.index_kpool - 1 + MAX_ROWS
        tail = SINGLE * tail_rows * 2 * g.index_head_dim
        return CacheSpec(latent_bytes(g, kv_format) + pooled_key_bytes(g), tail)
    state = SINGLE * g.kda_heads * g.kda_head_dim**2
    convolution = SINGLE * 3 * g.kda_width * (g.conv_kernel - 1)
    pending = SINGLE * MAX_ROWS * (4 * g.kda_width + g.kda_heads)
    return CacheSpec(0.0, state + convolution + pending)


def tandem_footprint(
    geometry: Geometry,
    bits: BitWidths,
    *,
    kv_format: str,
    workspace_bytes: int,
    workspace_bytes_per_token: float,
    graph_bytes_per_layer: int,
) -> ModelFootprint:
    """Our engine's footprint from dimensions alone (no file needed); its workspace is the model's to say."""
    layers = range(geometry.num_layers)
    return ModelFootprint(
        architecture="glm5_next",
        layer_weight_bytes=tuple(layer_bytes(geometry, i, bits) for i in layers),
        embedding_bytes=embedding_bytes(geometry),
        head_bytes=head_bytes(geometry, bits),
        tied_head=False,
        layer_cache=tuple(tandem_layer_cache(geometry, i, kv_format) for i in layers),
        residual_bytes_per_token=SINGLE * geometry.residual_streams * geometry.hidden_size,
        workspace_bytes=workspace_bytes,
        workspace_bytes_per_token=workspace_bytes_per_token,
        graph_bytes_per_layer=graph_bytes_per_layer,
        native_context_tokens=geometry.context_tokens,
        forbidden_cuts=shared_selection_cuts(geometry),
    )


def shared_selection_cuts(geometry: Geometry) -> tuple[int, ...]:
    """Layers no card may begin at: an MLA layer from there on uses the selection of a layer before."""
    refused: list[int] = []
    since = 0
    for layer, is_mla in enumerate(geometry.layer_is_mla):
        if geometry.layer_has_indexer[layer]:
            since = layer + 1
        elif is_mla:
            refused.extend(range(since, layer + 1))
            since = layer + 1
    return tuple(refused)


def dflash2_bytes(geometry: Geometry, *, ring_tokens: int, ring_bits: int) -> int:
    """The released DFlash2 drafter with 36 linears at 6 bits, K/V rows in bf16, and its window ring.

    Five layers, 32 query and 8 KV heads of 128, MLP of 12,288, two codebooks of rank 256.
    """
    hidden, kv, intermediate, layers, rank = geometry.hidden_size, 1024, 12_288, 5, 256
    linears = (
        2 * exl3_bytes(hidden, hidden, 6)
        + 2 * exl3_bytes(hidden, intermediate, 6)
        + exl3_bytes(intermediate, hidden, 6)
        + 2 * exl3_bytes(hidden, 1024, 6)
    )
    total = layers * (linears + 2 * HALF * hidden * kv) + exl3_bytes(5 * hidden, hidden, 6)
    total += HALF * rank * (2 * geometry.vocab_size + hidden)
    scales = 0 if ring_bits == 16 else HALF / _GROUP
    return total + round(ring_tokens * layers * 2 * kv * (ring_bits / 8 + scales))


def drafter_bytes(geometry: Geometry, bits: BitWidths, drafter: str, pool_tokens: int) -> int:
    """Our drafter's resident bytes. The MTP layer keeps one more MLA cache, in fp16."""
    if drafter == "none":
        return 0
    if drafter == "dflash2":
        return dflash2_bytes(geometry, ring_tokens=2560, ring_bits=16)
    if drafter == "mtp":
        cache = latent_bytes(geometry, "fp16") + pooled_key_bytes(geometry)
        return mtp_bytes(geometry, bits) + round(cache * pool_tokens)
    raise SettingsError(f"Drafter {drafter!r}", found="an unknown name", remedy="none, dflash2 or mtp")


@dataclass(frozen=True, slots=True)
class PeerProfile:
    """One profile of the source recipe (ExLlamaV3 1.5.4, layer split)."""

    name: str
    cache_tokens: int
    kv_format: str
    drafter: Drafter
    margin_bytes: int
    head_on_first_card: bool = False


PEER_PROFILES = (
    PeerProfile("q8_384k", 393_216, "q8", "dflash2", 128 * MIB, head_on_first_card=True),
    PeerProfile("q8_320k", 327_680, "q8", "dflash2", 256 * MIB),
    PeerProfile("q8_fast", 262_144, "q8", "dflash2", 192 * MIB),
    PeerProfile("fp16", 196_608, "fp16", "dflash2", 256 * MIB),
    PeerProfile("mtp", 196_608, "fp16", "mtp", 256 * MIB),
)
PEER_OVERHEAD_BYTES = round(2.85 * GIB)
"""Driver context plus the largest transient of a card. 2.65 to 3.10 GiB reproduce every published outcome."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """The outcome of the peer's greedy loader. ``failed_layer`` is the first that found no room."""

    card_bytes: tuple[int, ...]
    layers_per_card: tuple[int, ...]
    failed_layer: int | None


def peer_kv_bytes_per_token(geometry: Geometry, kv_format: str) -> float:
    """All MLA layers: latent, scales, raw key ‖ gate plane and pooled keys."""
    raw_plane = HALF * 2 * geometry.index_head_dim
    per_layer = latent_bytes(geometry, kv_format) + raw_plane + pooled_key_bytes(geometry)
    return per_layer * geometry.num_mla_layers


def peer_state_bytes(geometry: Geometry, draft_tokens: int) -> int:
    """One KDA layer of the 1.5 line: a convolution window and a whole state for every drafted position."""
    window = HALF * 3 * geometry.kda_width * (geometry.conv_kernel + draft_tokens)
    return window + (draft_tokens + 1) * SINGLE * geometry.kda_heads * geometry.kda_head_dim**2


def simulate_peer_load(
    geometry: Geometry,
    bits: BitWidths,
    profile: PeerProfile,
    *,
    cards: tuple[int, ...],
    overhead_bytes: int = PEER_OVERHEAD_BYTES,
) -> PeerLoad:
    """Fill card after card (bytes each) with layers in order, as the peer does, until one finds no room."""
    draft_tokens = 3 if profile.drafter == "mtp" else 7
    usable = [size - overhead_bytes - profile.margin_bytes for size in cards]
    held = [0] * len(cards)
    counts = [0] * len(cards)
    head = head_bytes(geometry, bits)
    drafter = peer_drafter_bytes(geometry, bits, profile)
    # With its head pinned to the first card the drafter follows it; an MTP layer always loads first.
    first_extras = (head if profile.head_on_first_card else 0) + (
        drafter if profile.head_on_first_card or profile.drafter == "mtp" else 0
    )
    held[0] += first_extras
    kv = peer_kv_bytes_per_token(geometry, profile.kv_format) / geometry.num_mla_layers
    card = 0
    for layer in range(geometry.num_layers):
        size = layer_bytes(geometry, layer, bits)
        if geometry.layer_is_mla[layer]:
            size += round(kv * profile.cache_tokens)
        else:
            size += peer_state_bytes(geometry, draft_tokens) + kda_gate_bytes(geometry)
        if held[card] + size > usable[card] and card + 1 < len(cards):
            card += 1
        last_extras = 0 if layer + 1 < geometry.num_layers else head + drafter - first_extras
        if held[card] + size + last_extras > usable[card]:
            return PeerLoad(tuple(held), tuple(counts), layer)
        held[card] += size + last_extras
        counts[card] += 1
    return PeerLoad(tuple(held), tuple(counts), None)


def peer_drafter_bytes(geometry: Geometry, bits: BitWidths, profile: PeerProfile) -> int:
    """The peer's drafter with its own cache: a ring for DFlash2, one more MLA layer for MTP."""
    if profile.drafter == "mtp":
        cache = peer_kv_bytes_per_token(geometry, "fp16") / geometry.num_mla_layers
        return mtp_bytes(geometry, bits) + round(cache * profile.cache_tokens)
    if profile.drafter == "none":
        return 0
    return dflash2_bytes(geometry, ring_tokens=8192, ring_bits=8 if profile.kv_format == "q8" else 16)
