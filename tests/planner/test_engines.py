"""The published facts of the source recipe, reproduced; ours beside them."""

from dataclasses import replace

import pytest

from tandem.core.errors import ModelUnsupportedError, SettingsError
from tandem.core.plan import GIB, MIB
from tandem.planner.engines import (
    PEER_PROFILES,
    PeerProfile,
    dflash2_bytes,
    latent_bytes,
    peer_kv_bytes_per_token,
    peer_state_bytes,
    simulate_peer_load,
    tandem_layer_cache,
)
from tandem.planner.geometry import (
    EXL3_3_05_BITS,
    GLM_5_3_FLASH,
    exl3_bytes,
    geometry_from_config,
    head_bytes,
    kda_gate_bytes,
    layer_bytes,
)

G, BITS = GLM_5_3_FLASH, EXL3_3_05_BITS


def test_weights_of_the_3_05_bit_pack():
    total = sum(layer_bytes(G, i, BITS) for i in range(G.num_layers)) + head_bytes(G, BITS)
    copies = G.num_kda_layers * kda_gate_bytes(G)
    assert copies == 221 * MIB
    assert (total + copies) / GIB == pytest.approx(112.38, abs=0.01)


def test_one_expert_and_one_layer_of_experts():
    expert = 2 * exl3_bytes(4096, 2048, 3) + exl3_bytes(2048, 4096, 3)
    assert expert == 9_474_048
    assert 288 * expert == 2_728_525_824


def test_peer_cache_is_4_51_gib_at_384k():
    assert peer_kv_bytes_per_token(G, "q8") == 12_320
    assert peer_kv_bytes_per_token(G, "fp16") == 17_600
    assert peer_kv_bytes_per_token(G, "q4") == 9_504
    assert 393_216 * peer_kv_bytes_per_token(G, "q8") / GIB == pytest.approx(4.51, abs=0.005)


def test_peer_states():
    assert 34 * peer_state_bytes(G, 7) / MIB == pytest.approx(1105.5, abs=0.1)


def test_drafter_and_ring():
    without_ring = dflash2_bytes(G, ring_tokens=0, ring_bits=16)
    assert without_ring / GIB == pytest.approx(0.959, abs=0.003)
    assert (dflash2_bytes(G, ring_tokens=8192, ring_bits=8) - without_ring) == 85 * MIB
    assert (dflash2_bytes(G, ring_tokens=8192, ring_bits=16) - without_ring) == 160 * MIB


@pytest.mark.parametrize("profile", PEER_PROFILES, ids=lambda p: p.name)
def test_every_profile_of_the_recipe_loads(profile):
    load = simulate_peer_load(G, BITS, profile, cards=(64 * GIB,) * 2)
    assert load.failed_layer is None
    assert sum(load.layers_per_card) == 45


@pytest.mark.parametrize("tokens", [458_752, 524_288], ids=["448K", "512K"])
def test_448k_and_512k_fail_at_the_last_layer(tokens):
    base = PEER_PROFILES[0]
    load = simulate_peer_load(G, BITS, replace(base, cache_tokens=tokens), cards=(64 * GIB,) * 2)
    assert load.failed_layer == 44


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("q8_384k", 60.7, 58.3), ("q8_320k", 58.8, 59.4), ("q8_fast", 58.4, 59.1), ("fp16", 58.5, 59.3)],
)
def test_bytes_per_card(name, first, second):
    profile = next(p for p in PEER_PROFILES if p.name == name)
    load = simulate_peer_load(G, BITS, profile, cards=(64 * GIB,) * 2)
    assert load.layers_per_card == (24, 21)
    assert [b / GIB for b in load.card_bytes] == [
        pytest.approx(first, abs=0.06),
        pytest.approx(second, abs=0.06),
    ]


def test_our_cache_keeps_no_raw_plane():
    mla = tandem_layer_cache(G, 3, "q8")
    assert mla.bytes_per_token == 608
    assert tandem_layer_cache(G, 3, "fp16").bytes_per_token == 1088
    total = sum(tandem_layer_cache(G, i, "q8").bytes_per_token for i in range(45))
    assert total * 1_048_576 / GIB == pytest.approx(6.53, abs=0.01)


def test_an_unknown_format_is_named():
    with pytest.raises(SettingsError, match="fp16, q8, q6 or q4"):
        latent_bytes(G, "q7")


def test_a_missing_field_is_named_and_nothing_is_defaulted():
    with pytest.raises(ModelUnsupportedError, match=r"needs 'layer_types'"):
        geometry_from_config({"hidden_size": 4096})


def test_unknown_profile_margin_changes_the_outcome():
    tight = PeerProfile("tight", 393_216, "q8", "dflash2", 2 * GIB, head_on_first_card=True)
    assert simulate_peer_load(G, BITS, tight, cards=(64 * GIB,) * 2).failed_layer is not None
