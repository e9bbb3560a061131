"""Each reference operator against the module of transformers that it restates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers.models.glm5_next import modeling_glm5_next as oracle

from tandem.kernels.hyper_connection import cpu as mhc_cpu
from tandem.kernels.hyper_connection import reference as mhc
from tandem.kernels.indexer import reference as indexer
from tandem.kernels.kda import reference as kda
from tandem.kernels.mla import reference as mla
from tandem.kernels.moe import reference as moe

from .tiny import oracle_config, randomize, relative_error, text_config

LENGTHS = (1, 2, 31, 63, 300)


def kda_inputs(rows: int, heads: int = 3, size: int = 16, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v, g = (torch.randn(rows, heads, size, generator=generator) for _ in range(4))
    beta = torch.rand(rows, heads, generator=generator)
    return q, k, v, -5 * torch.sigmoid(2 * g), beta


@pytest.mark.parametrize("rows", LENGTHS)
def test_kda_forms_agree_with_each_other_and_the_oracle(rows: int) -> None:
    q, k, v, g, beta = kda_inputs(rows)
    start = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
    expected, expected_state = oracle.recurrent_kimi_delta_attention(
        *(x[None] for x in (q, k, v, g, beta)), start[None], True, use_qk_l2norm_in_kernel=True
    )
    q, k = kda.normalize(q), kda.normalize(k)
    state_chunked, state_step = start.clone(), start.clone()
    chunked = kda.chunked(q, k, v, g, beta, state_chunked)
    stepped = torch.stack([kda.step(q[i], k[i], v[i], g[i], beta[i], state_step) for i in range(rows)])
    for output, state in ((chunked, state_chunked), (stepped, state_step)):
        assert relative_error(output, expected[0]) < 1e-5
        assert relative_error(state, expected_state[0]) < 1e-5


def test_kda_survives_the_steepest_decay() -> None:
    q, k, v, g, beta = kda_inputs(200)
    g = torch.full_like(g, -40.0)
    output = kda.chunked(kda.normalize(q), kda.normalize(k), v, g, beta, torch.zeros(3, 16, 16))
    assert output.isfinite().all()


def test_zero_rows_leave_the_kda_state_alone() -> None:
    q, k, v, g, beta = kda_inputs(70)
    state = torch.zeros(3, 16, 16)
    padded_state = torch.zeros(3, 16, 16)
    out = kda.chunked(q[:40], k[:40], v[:40], g[:40], beta[:40], state)
    for x in (k, v, g, beta):
        x[40:] = 0
    padded = kda.chunked(q, k, v, g, beta, padded_state)
    assert relative_error(padded[:40], out) < 1e-6
    assert relative_error(padded_state, state) < 1e-6


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_short_convolution(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    inputs, history = torch.randn(rows, 24, generator=generator), torch.randn(3, 24, generator=generator)
    weight = torch.randn(24, 4, generator=generator)
    expected = oracle.causal_conv1d_fn(torch.cat((history, inputs)).T[None], weight, activation="silu")
    torch.testing.assert_close(kda.short_convolution(inputs, history, weight), expected[0].T[3:])


@pytest.mark.parametrize("lower_bound", [-5.0, -2.5, None])
def test_decay(lower_bound: float | None) -> None:
    config = oracle_config(text_config())
    gate = oracle.Glm5NextTextForgetGate(config)
    gate.safe_gate_lower_bound = lower_bound
    randomize(gate, 3)
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(1))
    expected = gate(x)[0]
    forget = gate.f_b_proj(gate.f_a_proj(x))[0].view(9, 2, 32)
    found = kda.decay(forget, gate.dt_bias.view(2, 32), gate.A_log, lower_bound)
    torch.testing.assert_close(found, expected)


def test_gated_norm() -> None:
    norm = randomize(oracle.Glm5NextTextRMSNormGated(16, eps=1e-5), 1)
    x, gate = torch.randn(2, 7, 3, 16, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(kda.gated_norm(x, gate, norm.weight, 1e-5), norm(x, gate))


@pytest.mark.parametrize("coefficients", [mhc.coefficients, mhc_cpu.coefficients], ids=["torch", "numba"])
@pytest.mark.parametrize("rows", [1, 17])
def test_hyper_connection(rows: int, coefficients: Callable[..., mhc.MixCoefficients]) -> None:
    site = randomize(oracle.Glm5NextTextHyperConnection(oracle_config(text_config())), 5)
    generator = torch.Generator().manual_seed(rows)
    streams = torch.randn(rows, 4, 64, generator=generator)
    output = torch.randn(rows, 64, generator=generator)
    post, comb, collapsed = (x[0] for x in site(streams[None]))
    projected = mhc.normalize_streams(streams, 1e-5) @ site.fn.T
    weights = coefficients(projected, site.scale, site.base, 20, 1e-6)
    torch.testing.assert_close(weights.post, post)
    torch.testing.assert_close(weights.mix, comb)
    torch.testing.assert_close(weights.mix.sum(1), torch.ones(rows, 4), rtol=0, atol=1e-4)
    torch.testing.assert_close(mhc.collapse(streams, weights.pre), collapsed)
    expected = post[..., None] * output[:, None] + comb.transpose(-1, -2) @ streams
    torch.testing.assert_close(mhc.expand(streams, output, weights), expected)
    torch.testing.assert_close(mhc.mean_streams(streams), streams.mean(1))


def test_routing() -> None:
    router = randomize(oracle.Glm5NextTextTopkRouter(oracle_config(text_config())), 7)
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(7))
    _, weights, experts = router(x)
    order = experts.argsort(-1)
    found_experts, found_weights = moe.route(
        x @ router.weight.T, router.e_score_correction_bias, 2, normalize=True, scaling=2.5
    )
    assert torch.equal(found_experts, experts.gather(1, order))
    torch.testing.assert_close(found_weights, weights.gather(1, order))


def test_routing_ties_go_to_the_lower_expert() -> None:
    experts, weights = moe.route(torch.zeros(2, 8), torch.zeros(8), 3, normalize=True, scaling=1.0)
    assert experts.tolist() == [[0, 1, 2]] * 2
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 3))


def test_clamped_swiglu() -> None:
    config = oracle_config(text_config(swiglu_limit=0.5))
    mlp = randomize(oracle.Glm5NextTextMLP(config), 2, gain=2.0)
    x = torch.randn(30, 64, generator=torch.Generator().manual_seed(2))
    hidden = moe.clamped_swiglu(x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T, 0.5)
    torch.testing.assert_close(hidden @ mlp.down_proj.weight.T, mlp(x))


@pytest.mark.parametrize("kpool", [1, 4, 16])
@pytest.mark.parametrize("rows", [1, 3, 63, 64, 65, 300])
def test_indexer_selects_the_oracles_tokens(rows: int, kpool: int) -> None:
    config = oracle_config(text_config(index_kpool=kpool))
    module = randomize(oracle.Glm5NextTextIndexer(config, 2), 11)
    generator = torch.Generator().manual_seed(rows)
    x, q_resid = torch.randn(1, rows, 64, generator=generator), torch.randn(1, rows, 48, generator=generator)
    topk = module(x, q_resid, torch.ones(1, rows, dtype=torch.bool), None)[0]
    expected = torch.zeros(rows, rows + 1, dtype=torch.bool).scatter(
        1, topk.long().where(topk >= 0, rows), True
    )[:, :rows]

    pools = rows // kpool
    keys = module.k_norm(module.wk(x[0]))[: pools * kpool].view(pools, kpool, 32)
    gates = (x[0] @ module.index_kpool_compress_gate.T)[: pools * kpool].view(pools, kpool, 32)
    pooled = indexer.pool_keys(keys, gates, module.index_kpool_compress_ape)
    q = module.wq_b(q_resid[0]).view(rows, 16, 32)
    scores = indexer.score_pools(q, module.weights_proj(x[0]), pooled)
    positions = torch.arange(rows)
    chosen = indexer.select_pools(scores, (positions + 1) // kpool, 64 // kpool)
    assert torch.equal(indexer.attended_tokens(chosen, positions, kpool, rows), expected)


def test_pool_ties_go_to_the_earlier_pool() -> None:
    chosen = indexer.select_pools(torch.zeros(2, 6), torch.tensor([6, 2]), 3)
    assert chosen.tolist() == [[True] * 3 + [False] * 3, [True] * 2 + [False] * 4]


@pytest.mark.parametrize("rows", [1, 63, 300])
def test_absorbed_attention(rows: int) -> None:
    config = oracle_config(text_config())
    module = randomize(oracle.Glm5NextTextAttention(config, 2), 13)
    x = torch.randn(1, rows, 64, generator=torch.Generator().manual_seed(rows))
    valid = torch.ones(1, rows, dtype=torch.bool)
    expected = module(x, valid)[0][0]

    q_resid = module.q_a_layernorm(module.q_a_proj(x))
    topk = module.indexer(x, q_resid, valid, None)[0].long()
    mask = torch.zeros(rows, rows + 1, dtype=torch.bool).scatter(1, topk.where(topk >= 0, rows), True)[
        :, :rows
    ]
    latents = module.kv_a_layernorm(module.kv_a_proj_with_mqa(x))[0]
    key_half, value_half = mla.split_kv_b(module.kv_b_proj.weight, 2, 32)
    q = mla.absorb_query(module.q_b_proj(q_resid)[0].view(rows, 2, 32), key_half)
    attended = mla.unabsorb_output(mla.latent_attention(q, latents, mask, 32**-0.5), value_half)
    assert relative_error(attended.reshape(rows, -1) @ module.o_proj.weight.T, expected) < 1e-5
