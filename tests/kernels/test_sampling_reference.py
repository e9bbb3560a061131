"""The integer specification of sampling against the host's sampler: survivors, draws, edits and logprobs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.errors import TandemError
from tandem.core.requests import SamplingParams
from tandem.kernels.sampling import reference
from tandem.kernels.sampling.operands import LOG2_E, WEIGHT_BITS, Edits, RowRequest, fraction
from tandem.sampling import filters, host
from tandem.sampling.drawn import drawn_by_kernel
from tandem.sampling.logprobs import token_logprob
from tandem.sampling.sample import greedy

thorough = settings(max_examples=400, deadline=None, derandomize=True)
LENGTHS = st.sampled_from([1, 2, 63, 500, 3001])
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-3, 0.1, 0.7, 1.0, 2.0, 10.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.95, 0.999999, 1.0]),
    top_k=st.sampled_from([0, 2, 17, 300, 100_000]),
    min_p=st.sampled_from([0.0, 1e-9, 0.05, 0.5, 1.0]),
)


def row_of(seed: int, length: int, levels: int) -> np.ndarray:
    """Some forbidden; ``levels``: steps in a logit of 1, 0: all differ, zeros of both signs else."""
    generator = np.random.default_rng(seed)
    row = (generator.standard_normal(length) * 3).astype(np.float32)
    if levels:
        row = np.round(row * levels) / np.float32(levels)
        row[::3] *= -1
    row[generator.random(length) < 0.2] = -np.inf
    row[generator.integers(length)] = 1.5
    return row


@thorough
@given(PARAMS, LENGTHS, st.integers(0, 10_000), st.sampled_from([0, 1, 4]))
def test_survivors_are_the_hosts(params, length, seed, levels):
    row = row_of(seed, length, levels)
    request = RowRequest(params, 0.5)
    kept = reference.survivors(row, request)
    expected = filters.survivors(row, params)
    expected = np.arange(length) if expected is None else expected
    expected = expected[row[expected] > -np.inf]  # the host keeps forbidden ones, whose weight is 0
    moved = np.setxor1d(kept, expected)
    if params.top_p == 1.0:
        assert moved.size == 0
    # Sums rounded otherwise may end the nucleus a token earlier or later, or move what weighs nothing.
    weights = np.exp((row - row.max()).astype(np.float64) / params.temperature)
    weights /= weights[np.union1d(kept, expected)].sum()
    assert moved.size <= 1 or weights[moved].sum() < 1e-6


@thorough
@given(
    PARAMS, LENGTHS, st.integers(0, 10_000), st.sampled_from([0, 4]), st.floats(0.0, 1.0, exclude_max=True)
)
def test_draws_are_the_hosts(params, length, seed, levels, point):
    row = row_of(seed, length, levels)
    kept = reference.survivors(row, RowRequest(params, point))
    found = reference.draw(
        reference.weights_of(row[kept], row.max(), RowRequest(params, 0).tempering), kept, point
    )
    exact = np.exp((row[kept] - row.max()).astype(np.float64) / params.temperature)
    sums = np.cumsum(exact) / exact.sum()
    at = int(np.flatnonzero(kept == found)[0])
    assert row[found] > -np.inf
    assert sums[at] >= point - 1e-6
    assert (sums[at - 1] if at else 0.0) <= point + 1e-6


def test_a_point_in_the_middle_of_a_token_draws_what_the_host_draws():
    row = row_of(1, 500, 0)
    sums = np.cumsum(np.exp((row - row.max()).astype(np.float64)))
    middles = (sums - np.diff(sums, prepend=0.0) / 2) / sums[-1]
    for token in np.flatnonzero(np.diff(sums, prepend=0.0) / sums[-1] > 1e-5):
        request = RowRequest(SamplingParams(), float(middles[token]))
        processed = np.where(row == -np.inf, np.float32(-1e4), row)
        assert reference.sample(processed, request).token == token == host.draw(processed, request).token


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1.0, 10.0, 1e30])
def test_weights_are_exponentials(temperature):
    row = row_of(3, 4000, 0)
    tempering = RowRequest(SamplingParams(temperature=temperature), 0.0).tempering
    weights = reference.weights_of(row, row.max(), tempering) / 2.0**WEIGHT_BITS
    with np.errstate(over="ignore"):
        exact = np.exp((row.astype(np.float64) - row.max()) / temperature)
    np.testing.assert_allclose(weights, exact, rtol=2e-6, atol=2.0**-WEIGHT_BITS)
    assert weights.max() == 1.0
    assert np.all(np.diff(weights[np.argsort(row)]) >= 0.0)


def test_keys_are_in_the_order_of_logits():
    row = np.array([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 2.0, 3e38], dtype=np.float32)
    keys = reference.keys_of(row).astype(np.int64)
    assert np.array_equal(np.diff(keys) > 0, np.diff(row) > 0)
    assert keys[0] == reference.NOBODY == 0x007FFFFF


def test_fractions():
    assert (fraction(0.0), fraction(0.5), fraction(1.0 - 2.0**-53)) == (0, 1 << 63, (1 << 64) - (1 << 11))


def edits_of(seed: int, length: int) -> Edits:
    generator = np.random.default_rng(seed)

    def ids() -> np.ndarray:
        return generator.choice(length, int(generator.integers(length + 1)), replace=False)

    seen, output, biased, held = (ids() for _ in range(4))
    bias = generator.normal(0.0, 3.0, biased.size).astype(np.float32)
    bias[::4] = -np.inf
    minus = generator.normal(0.0, 1.0, output.size).astype(np.float32)
    return Edits(seen, float(generator.uniform(0.5, 2.0)), output, minus, biased, bias, held)


@thorough
@given(LENGTHS, st.integers(0, 10_000), st.sampled_from([None, 0.02, 0.5]), st.booleans())
def test_edits_are_the_hosts_bit_for_bit(length, seed, allowed, edits):
    generator = np.random.default_rng(seed)
    row = generator.standard_normal(length).astype(np.float32)
    mask = None if allowed is None else np.packbits(generator.random(length) < allowed).tobytes()
    edits = edits_of(seed, length) if edits else None
    request = RowRequest(SamplingParams(temperature=0.0), 0.0, edits, mask)
    expected, refused = outcome(lambda: host.processed(row, request))
    result = reference.sample(row, request)
    assert outcome(lambda: drawn_by_kernel(result, length))[1] == refused
    if expected is None:
        assert reference.edited(row, edits, mask).max() == -np.inf
    else:
        found = reference.edited(row, edits, mask)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        assert result.token == greedy(expected)


def outcome(call):
    """What it returns, or what its error says."""
    try:
        return call(), None
    except TandemError as error:
        return None, str(error)


@thorough
@given(st.integers(0, 20), LENGTHS, st.integers(0, 1000), st.sampled_from([0, 2]))
def test_logprobs_are_the_hosts(top, length, seed, levels):
    row = np.fmax(row_of(seed, length, levels), np.float32(-20.0))
    result = reference.sample(row, RowRequest(SamplingParams(logprobs=top), 0.7))
    found = drawn_by_kernel(result, length).logprob
    expected = token_logprob(row, result.token, top)
    assert found.token_id == expected.token_id
    assert [token for token, _ in found.top] == [token for token, _ in expected.top]
    assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert [v for _, v in found.top] == pytest.approx([v for _, v in expected.top], abs=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_named_as_the_host_does(value):
    row = np.zeros(500, dtype=np.float32)
    row[[3, 77]] = value
    request = RowRequest(SamplingParams(), 0.5)
    refused = outcome(lambda: host.draw(row, request))[1]
    assert "2 of 500 are NaN or inf" in refused
    assert outcome(lambda: drawn_by_kernel(reference.sample(row, request), 500))[1] == refused


def test_the_logits_stay_as_they_are():
    row = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    row.setflags(write=False)
    request = RowRequest(SamplingParams(top_p=0.9, logprobs=3), 0.5, edits_of(0, 500))
    assert reference.sample(row, request) == reference.sample(row, dataclasses.replace(request))


def test_temperature_one_is_worth_log2_e():
    assert RowRequest(SamplingParams(), 0.0).tempering == LOG2_E
