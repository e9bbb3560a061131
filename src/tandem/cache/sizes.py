"""Bytes of latent, pooled-index and recurrent caches, before any is allocated. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tandem.core.batch import MAX_ROWS_PER_RUN
from tandem.core.errors import ModelUnsupportedError, SettingsError

LatentFormat = Literal["fp32", "fp16", "q8"]
Q8_GROUP = 32
"""Latent values that share a scale."""


def check_format(name: str) -> LatentFormat:
    """Raises SettingsError for anything but a LatentFormat."""
    for known in get_args(LatentFormat):
        if name == known:
            return known  # type: ignore[no-any-return]
    formats = ", ".join(get_args(LatentFormat))
    raise SettingsError(
        "This model's cache cannot be kept in that format", found=name, remedy=f"one of {formats}"
    )


def check_page_tokens(page_tokens: int, pool_tokens: int) -> None:
    """Raises SettingsError if a pool would straddle two pages."""
    if page_tokens % pool_tokens:
        raise SettingsError(
            f"Pages must hold whole pools of {pool_tokens} tokens",
            found=f"{page_tokens} tokens a page",
            remedy=f"a multiple of {pool_tokens}",
        )


def latent_bytes_per_token(latent_size: int, cache_format: LatentFormat) -> int:
    """Bytes of one token's latent in one layer.

    Raises ModelUnsupportedError if the size has no whole groups for q8.
    """
    if cache_format != "q8":
        return latent_size * (4 if cache_format == "fp32" else 2)
    if latent_size % Q8_GROUP:
        raise ModelUnsupportedError(
            f"The q8 cache needs a latent size that is a multiple of {Q8_GROUP}",
            found=str(latent_size),
            remedy="the fp16 cache",
        )
    return latent_size + 2 * (latent_size // Q8_GROUP)


def pooled_bytes_per_token(head_dim: int, pool_tokens: int, cache_format: LatentFormat) -> float:
    """A token's share of its pool's key in one layer."""
    return head_dim * (4 if cache_format == "fp32" else 2) / pool_tokens


def ring_tokens(pool_tokens: int) -> int:
    """Raw tail entries of the indexer that a sequence keeps, rejected rows included."""
    return pool_tokens - 1 + MAX_ROWS_PER_RUN


def ring_bytes(head_dim: int, pool_tokens: int) -> int:
    """Bytes of one sequence's raw tail in one layer: keys and gates in fp32."""
    return 4 * ring_tokens(pool_tokens) * 2 * head_dim


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """One KDA layer's state."""

    heads: int
    head_dim: int
    conv_taps: int

    @property
    def channels(self) -> int:
        """Inputs of the convolution: query, key and value of all heads."""
        return 3 * self.heads * self.head_dim

    @property
    def pending_values(self) -> int:
        """One pending row: convolution inputs, log decays, mixing rates."""
        return self.channels + self.heads * self.head_dim + self.heads

    @property
    def checkpoint_bytes(self) -> int:
        """State and convolution history, all fp32, as prefill leaves them."""
        return 4 * (self.heads * self.head_dim**2 + (self.conv_taps - 1) * self.channels)

    @property
    def slot_bytes(self) -> int:
        """One sequence in one layer: a checkpoint's worth, and the pending rows."""
        return self.checkpoint_bytes + 4 * MAX_ROWS_PER_RUN * self.pending_values
