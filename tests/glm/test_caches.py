"""Latent, pooled-index and recurrent caches: what is written is read, and what is declared is allocated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cache.latent import LatentCache
from tandem.cache.pooled_index import PooledIndexCache
from tandem.cache.recurrent import RecurrentSlots
from tandem.cache.sizes import (
    RecurrentShape,
    check_format,
    check_page_tokens,
    latent_bytes_per_token,
    pooled_bytes_per_token,
    ring_bytes,
    ring_tokens,
)
from tandem.core.batch import MAX_ROWS_PER_RUN
from tandem.core.errors import EngineFault, ModelUnsupportedError, SettingsError
from tandem.kernels.indexer.reference import pool_keys
from tandem.kernels.latent_q8 import reference as q8

from .tiny import relative_error


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("cache_format", "bound"), [("fp32", 0.0), ("fp16", 3e-4), ("q8", 1e-2)])
def test_latents_survive_their_format(cache_format: str, bound: float) -> None:
    cache = LatentCache(64, 512, check_format(cache_format))
    latents, tokens = random(20, 512), torch.randperm(64)[:20]
    cache.write(tokens, latents)
    assert relative_error(cache.read(tokens), latents) <= bound
    assert cache.allocated_bytes == 64 * latent_bytes_per_token(512, check_format(cache_format))


def test_a_released_model_takes_608_bytes_a_token_and_layer_in_q8() -> None:
    pool = PooledIndexCache(1024, 1, 4, 128, torch.float16)
    pooled_bytes = (pool.allocated_bytes - ring_bytes(128, 4)) / 1024
    assert pooled_bytes == pooled_bytes_per_token(128, 4, "q8")
    assert latent_bytes_per_token(512, "q8") + pooled_bytes == 608
    assert latent_bytes_per_token(512, "fp16") + pooled_bytes == 1088


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 60.0, 1e9])
def test_q8_stays_within_half_a_step(scale: float) -> None:
    latents = random(50, 64) * scale
    codes, scales = q8.encode(latents)
    found = q8.decode(codes, scales)
    assert found.isfinite().all()
    if scale <= 60:
        steps = scales.float().repeat_interleave(q8.GROUP, 1)
        error = q8.hadamard(found - latents, q8.GROUP).abs()
        assert (error <= 0.5001 * steps + 1e-5 * scale).all()


def test_q8_spreads_an_outlier() -> None:
    latents = random(1, 512)
    latents[0, 5] = 100
    codes, scales = q8.encode(latents)
    assert relative_error(q8.decode(codes, scales), latents) < 0.01


def test_zero_latents_are_exact() -> None:
    codes, scales = q8.encode(torch.zeros(2, 64))
    assert not codes.any()
    assert not scales.any()


def test_values_beyond_fp16_are_clipped_not_infinite() -> None:
    cache = LatentCache(2, 32, "fp16")
    cache.write(torch.tensor([1]), torch.full((1, 32), 1e9))
    assert cache.read(torch.tensor([1])).max() == 65504


def test_unusable_cache_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="fp32, fp16, q8"):
        check_format("q3")
    with pytest.raises(ModelUnsupportedError, match="multiple of 32"):
        latent_bytes_per_token(40, "q8")
    with pytest.raises(SettingsError, match="whole pools of 4"):
        check_page_tokens(18, 4)


@pytest.mark.parametrize("pool_tokens", [1, 4, 16])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_pools_survive_rejected_rows(pool_tokens: int, data: st.DataObject) -> None:
    """Steps of up to 16 rows, of which any number is kept: the pools are those of the kept rows."""
    tokens, dim = 96, 8
    truth = random(tokens, 2, dim, seed=1)
    bias = random(pool_tokens, dim, seed=2)
    cache = PooledIndexCache(128, 2, pool_tokens, dim, torch.float32)
    start = data.draw(st.integers(0, 40))
    chunk = torch.cat((truth[:start], random(48 - start, 2, dim, seed=3)))
    cache.append_chunk(1, 0, start, chunk, torch.arange(start // pool_tokens), bias)
    position = start
    while position < tokens:
        rows = data.draw(st.integers(1, min(MAX_ROWS_PER_RUN, tokens - position)))
        kept = data.draw(st.integers(0 if rows > 1 else 1, rows))
        for i in range(rows):
            value = truth[position + i] if i < kept else random(2, dim, seed=99 + i)
            pool = torch.tensor([(position + i) // pool_tokens])
            cache.append_row(1, position + i, value, pool, bias)
        position += kept
    complete = tokens // pool_tokens
    members = truth[: complete * pool_tokens].view(complete, pool_tokens, 2, dim)
    expected = pool_keys(members[:, :, 0], members[:, :, 1], bias)
    torch.testing.assert_close(cache.read(torch.arange(complete)), expected)


def test_ring_is_as_long_as_declared() -> None:
    cache = PooledIndexCache(64, 3, 4, 128, torch.float16)
    assert cache.allocated_bytes == 64 * 64 + 3 * ring_bytes(128, 4)
    assert ring_tokens(4) == 19


SHAPE = RecurrentShape(heads=2, head_dim=16, conv_taps=4)


def test_recurrent_bytes_are_those_declared() -> None:
    slots = RecurrentSlots(SHAPE, 5)
    assert slots.allocated_bytes == 5 * SHAPE.slot_bytes


def test_released_models_state_is_4_mib_a_layer() -> None:
    released = RecurrentShape(heads=64, head_dim=128, conv_taps=4)
    assert 34 * 4 * released.heads * released.head_dim**2 == 34 * 4 * 2**20
    assert 34 * released.checkpoint_bytes == 34 * (4 * 2**20 + 4 * 3 * 24576)


def test_a_step_may_continue_after_any_pending_row_and_nowhere_else() -> None:
    slots = RecurrentSlots(SHAPE, 1)
    slots.commit(0, 10, pending_rows=4)
    assert [slots.accepted_rows(0, start) for start in range(10, 15)] == [0, 1, 2, 3, 4]
    for start in (9, 15):
        with pytest.raises(EngineFault, match=f"position {start}"):
            slots.accepted_rows(0, start)
    slots.reset(0)
    assert slots.accepted_rows(0, 0) == 0


def test_checkpoints_keep_state_history_and_pending_rows() -> None:
    slots = RecurrentSlots(SHAPE, 2)
    view = slots.view(0)
    view.state.copy_(random(*view.state.shape))
    view.history.copy_(random(*view.history.shape))
    view.pending.copy_(random(*view.pending.shape))
    slots.commit(0, 32, pending_rows=3)
    slots.save(0, 7)
    kept = [x.clone() for x in (view.state, view.history, view.pending[:3])]
    slots.reset(0)
    view.pending.zero_()
    slots.restore(1, 7)
    other = slots.view(1)
    found = (other.state, other.history, other.pending[:3])
    assert all(torch.equal(a, b) for a, b in zip(kept, found, strict=True))
    assert slots.accepted_rows(1, 35) == 3
    with pytest.raises(EngineFault, match="checkpoint 8"):
        slots.restore(1, 8)
