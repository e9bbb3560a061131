"""Paged keys and values of grouped-query attention.

One pool for a stage, ``[pages, layers, kv_heads, 2, page_tokens · head_dim]`` (drawn in
``kernels/attention/reference.py``): a page is contiguous over all layers, so that it can be copied as one
piece, and pages that were never used lie together. Memory is reserved, not touched: a page costs resident
bytes from its first use on. (One pool per layer made the system back thirty pools with 2 MiB pages each.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandem.core.errors import SettingsError
from tandem.core.plan import CacheSpec

_DTYPES: dict[str, np.dtype[np.float32] | np.dtype[np.int16]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.int16),
}
"""Half floats are kept as their bits: the CPU kernels alone give them a meaning."""
_TOKEN_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class PagedSpec:
    """The shape of one layer's cache. Raises SettingsError for an unknown type or page size."""

    kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise SettingsError(
                "This model's cache cannot be kept in that format",
                found=self.dtype,
                remedy=f"one of {', '.join(_DTYPES)}",
            )
        if self.page_tokens % _TOKEN_MULTIPLE:
            raise SettingsError(
                f"A page must hold a multiple of {_TOKEN_MULTIPLE} tokens", found=str(self.page_tokens)
            )

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * _DTYPES[self.dtype].itemsize

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(bytes_per_token=self.bytes_per_token)


class PagedCache:
    """The pages of consecutive layers."""

    def __init__(self, spec: PagedSpec, layers: int, total_pages: int) -> None:
        self.spec = spec
        shape = (total_pages, layers, spec.kv_heads, 2, spec.page_tokens * spec.head_dim)
        self.pool = np.empty(shape, _DTYPES[spec.dtype])

    @property
    def cache_bytes(self) -> int:
        return self.pool.nbytes
