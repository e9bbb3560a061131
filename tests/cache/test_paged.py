"""The paged cache: what it declares is what it allocates, and unused pages cost nothing."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from tandem.cache.paged import PagedCache, PagedSpec
from tandem.core.errors import SettingsError


@pytest.mark.parametrize(("dtype", "element_bytes"), [("fp32", 4), ("fp16", 2)])
def test_declared_bytes_are_allocated(dtype: str, element_bytes: int) -> None:
    spec = PagedSpec(kv_heads=3, head_dim=64, page_tokens=32, dtype=dtype)
    assert spec.bytes_per_token == 2 * 3 * 64 * element_bytes
    assert spec.cache_spec.bytes_per_token == spec.bytes_per_token
    cache = PagedCache(spec, layers=5, total_pages=7)
    assert cache.cache_bytes == 5 * 7 * 32 * spec.bytes_per_token


def test_a_page_is_one_piece() -> None:
    cache = PagedCache(PagedSpec(2, 16, 16), layers=4, total_pages=3)
    page = cache.pool[1]
    assert page.flags.c_contiguous
    assert page.nbytes == 4 * 16 * cache.spec.bytes_per_token


def test_untouched_pages_stay_out_of_memory() -> None:
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = PagedCache(PagedSpec(8, 128, 64), layers=32, total_pages=128)
    assert cache.cache_bytes == 2**31
    cache.pool[5] = np.float32(0.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 2**17


@pytest.mark.parametrize(("page_tokens", "dtype"), [(24, "fp32"), (16, "q8")])
def test_what_cannot_be_kept_is_refused(page_tokens: int, dtype: str) -> None:
    with pytest.raises(SettingsError, match=dtype if dtype == "q8" else "24"):
        PagedSpec(2, 16, page_tokens, dtype)
