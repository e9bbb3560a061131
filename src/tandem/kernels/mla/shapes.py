"""Which cards and models take a chunk's attention by Hopper's warp groups. Asked by plans, too: no torch."""

from __future__ import annotations

from tandem.core.cards import Capability

HEADS, LATENT = 64, 512
"""Heads of a block, and the width of a latent, that ``mla_chunk.cu`` is written for."""


def by_warp_groups(capability: Capability | None, heads: int, latent: int) -> bool:
    """Whether card and model suit ``ChunkAttention``; None: a card of which nothing is known."""
    hopper = capability is not None and capability[0] == 9
    return hopper and heads % HEADS == 0 and latent == LATENT
