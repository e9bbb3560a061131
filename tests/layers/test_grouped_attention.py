"""Grouped attention as one layer (projection, norms, rotation, cache, output) against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.cache.paged import PagedCache, PagedSpec
from tandem.kernels.attention import reference as attention
from tandem.kernels.norm.reference import rmsnorm
from tandem.kernels.rope import cpu as rope_cpu
from tandem.kernels.rope import reference as rope
from tandem.layers.attention import AttentionStep, GroupedAttention, HeadNorms
from tandem.layers.linear import Linear
from tandem.layers.norm import RMSNorm
from tandem.quant.tiles import tile

HEADS, KV_HEADS, D, H = 4, 2, 16, 48
EPS = 1e-6


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rows", [1, 63])
def test_layer(rows: int, normed: bool) -> None:
    qkv, out = torch.randn((HEADS + 2 * KV_HEADS) * D, H) / 7, torch.randn(H, HEADS * D) / 7
    query_norm, key_norm = torch.rand(D) + 0.5, torch.rand(D) + 0.5
    norms = HeadNorms(RMSNorm(query_norm.numpy(), EPS), RMSNorm(key_norm.numpy(), EPS)) if normed else None
    layer = GroupedAttention(
        Linear(tile({"qkv": qkv})), Linear(tile({"out": out})), heads=HEADS, head_dim=D, norms=norms
    )
    cache = PagedCache(PagedSpec(KV_HEADS, D, 16), layers=2, total_pages=6)
    cache.pool.fill(np.nan)
    positions = np.arange(rows, dtype=np.int32)
    cosine, sine = np.empty((2, rows, D // 2), np.float32)
    frequencies = np.float32(10_000.0) ** -(np.arange(D // 2, dtype=np.float32) / (D // 2))
    rope_cpu.angles(positions, frequencies, np.float32(1.0), cosine, sine)
    table = np.array([[4, 1, 5, 0]], np.int32)
    x, residual = torch.randn(rows, H), torch.randn(rows, H)

    heads = (x @ qkv.T).reshape(rows, -1, D)
    queries, keys, values = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
    if normed:
        queries, keys = rmsnorm(queries, query_norm, EPS), rmsnorm(keys, key_norm, EPS)
    angles = torch.from_numpy(cosine), torch.from_numpy(sine)
    queries, keys = rope.rotate(queries, *angles), rope.rotate(keys, *angles)
    mixed = torch.stack([attention.attend(queries[p], keys, values, p) for p in range(rows)])
    expected = residual + mixed.reshape(rows, -1) @ out.T

    for start in (None, 0):
        found = residual.numpy().copy()
        step = AttentionStep(positions, np.zeros(rows, np.int32), table, cosine, sine, start)
        layer.add_to(found, x.numpy(), step, cache.pool, layer=1)
        assert np.abs(found - expected.numpy()).max() < 1e-5
    assert np.isnan(cache.pool[:, 0]).all(), "another layer's pages were written"
