"""Sampling on a card equals its reference to the last integer: tokens, survivors, logprobs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, compile_ahead

from tandem.core.requests import SamplingParams
from tandem.kernels.sampling.cuda import SOURCE, CudaRowSampler
from tandem.kernels.sampling.operands import Edits, RowRequest
from tandem.kernels.sampling.reference import edited, keys_of, sample

pytestmark = NEEDS_CARD
VOCABULARY = 154_880
GREEDY = SamplingParams(temperature=0.0)
SETTINGS = [
    GREEDY,
    SamplingParams(),
    SamplingParams(top_p=0.95),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
    SamplingParams(top_k=50, min_p=0.05),
    SamplingParams(temperature=10.0, top_p=0.999),
    SamplingParams(temperature=1e-3, top_p=0.5, logprobs=20),
    SamplingParams(min_p=1e-4, logprobs=0),
    SamplingParams(top_k=1, logprobs=5),
    SamplingParams(temperature=3.0, top_k=100_000, top_p=0.3),
    SamplingParams(top_p=1e-9),
    SamplingParams(min_p=1.0),
]


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_together():
    compile_ahead(SOURCE)


@pytest.fixture(scope="module")
def samplers():
    """One for each vocabulary: what an earlier call left must not show in a later one."""
    return {size: CudaRowSampler(size, DEVICE, CUBINS) for size in (1, 63, 500, VOCABULARY)}


def logits_of(seed: int, rows: int, size: int, levels: int = 0, scale: float = 4.0) -> torch.Tensor:
    """fp32 [rows, size]. ``levels``: steps in a logit of 1; 0: all differ."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, size, generator=generator) * scale
    if levels:
        values = (values * levels).round() / levels
        values[:, ::3] *= -1.0
    return values


def requests_of(rows: int, seed: int = 0) -> list[RowRequest]:
    points = np.random.default_rng(seed).random(rows)
    return [RowRequest(SETTINGS[(row + seed) % len(SETTINGS)], float(points[row])) for row in range(rows)]


def sampled(sampler, logits, requests):
    """Results, from poisoned memory; the logits, NaN behind each row, come out as they went in."""
    rows, size = logits.shape
    padded = torch.full((rows, size // 4 * 4 + 8), float("nan"))
    padded[:, :size] = logits
    on_card = padded.clone().to(DEVICE)
    sampler._results.fill_(0xA5)
    sampler._replaced.fill_(float("nan"))
    results = sampler.sample(on_card[:, :size], requests)
    assert torch.equal(on_card.cpu().view(torch.int32), padded.view(torch.int32))
    return results


def survivors_of(row, request, result):
    keys = keys_of(edited(row, request.edits, request.mask))
    ids = np.arange(len(keys))
    return (keys > result.threshold) | ((keys == result.threshold) & (ids <= result.last_tie))


def check(results, logits, requests):
    rows = logits.numpy()
    for row, request, result in zip(rows, requests, results, strict=True):
        expected = sample(row, request)
        assert (result.token, result.not_finite) == (expected.token, expected.not_finite)
        assert result.logprobs == expected.logprobs
        if result.token >= 0 and not request.greedy:
            np.testing.assert_array_equal(
                survivors_of(row, request, result), survivors_of(row, request, expected)
            )


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("size", [1, 63, 500, VOCABULARY])
def test_equals_the_reference(samplers, rows, size):
    for seed in range(2 if size == VOCABULARY else 8):
        logits, requests = logits_of(seed, rows, size), requests_of(rows, seed)
        check(sampled(samplers[size], logits, requests), logits, requests)


@pytest.mark.parametrize("levels", [0.1, 1, 8])
@pytest.mark.parametrize("size", [500, VOCABULARY])
def test_ties_go_to_the_lower_ids(samplers, size, levels):
    logits, requests = logits_of(5, len(SETTINGS), size, levels), requests_of(len(SETTINGS))
    logits[1, :size] = 0.0
    logits[1, :size:2] = -0.0
    check(sampled(samplers[size], logits, requests), logits, requests)


def test_greedy_is_argmax(samplers):
    logits = logits_of(6, 16, VOCABULARY, levels=4)
    results = sampled(samplers[VOCABULARY], logits, [RowRequest(GREEDY, 0.0)] * 16)
    expected = [int(row.argmax()) for row in logits.numpy()]
    assert [result.token for result in results] == expected


def test_logits_far_apart(samplers):
    logits, requests = logits_of(7, len(SETTINGS), 500, scale=1.0), requests_of(len(SETTINGS))
    logits[:, :500:5] = -1e30
    logits[:, 1:500:7] *= 1e3
    logits[3, 9], logits[3, 8] = 3e38, -3e38
    check(sampled(samplers[500], logits, requests), logits, requests)


def test_a_row_depends_on_itself_alone(samplers):
    logits, requests = logits_of(8, 16, 500), [with_edits(request, 500) for request in requests_of(16)]
    together = sampled(samplers[500], logits, requests)
    for row in range(16):
        assert sampled(samplers[500], logits[row : row + 1], requests[row : row + 1]) == [together[row]]


def test_more_rows_than_a_launch_has_and_rows_of_which_nothing_is_asked(samplers):
    logits, requests = logits_of(9, 37, 63), requests_of(37)
    alone = [sampled(samplers[63], logits[i : i + 1], requests[i : i + 1])[0] for i in range(37)]
    asked = [None if i % 5 == 2 else request for i, request in enumerate(requests)]
    results = sampled(samplers[63], logits, asked)
    assert results == [None if i % 5 == 2 else alone[i] for i in range(37)]


def test_logits_that_are_not_finite_are_counted_and_touch_no_other_row(samplers):
    logits, requests = logits_of(10, 5, 500), requests_of(5, seed=1)
    for value, count in ((math.nan, 3), (math.inf, 1), (-math.inf, 500)):
        broken = logits.clone()
        broken[2, :count] = value
        results = sampled(samplers[500], broken, requests)
        assert (results[2].token, results[2].not_finite) == (-1, count)
        check(results, broken, requests)


def with_edits(request, size, seed=0, held=4):
    generator = np.random.default_rng(seed)

    def ids(count):
        return generator.choice(size, min(count, size), replace=False)

    def amounts(of):
        return generator.normal(0.0, 2.0, len(of)).astype(np.float32)

    seen, output, biased = ids(size // 2), ids(size // 9), ids(20)
    bias = amounts(biased)
    bias[::3] = -np.inf
    edits = Edits(seen, 1.3, output, amounts(output), biased, bias, ids(held))
    return dataclasses.replace(request, edits=edits)


def mask_of(size, allowed):
    bits = np.zeros(size, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize("size", [63, 500, VOCABULARY])
def test_edits_and_masks(samplers, size):
    generator = np.random.default_rng(size)
    logits, requests = logits_of(11, 16, size), requests_of(16)
    for row in range(16):
        if row % 4 != 3:
            requests[row] = with_edits(requests[row], size, row)
        if row % 3 == 1:
            allowed = generator.choice(size, max(size // (row + 2), 1), replace=False)
            requests[row] = dataclasses.replace(
                requests[row], mask=mask_of(size - row % 2, allowed % (size - 1))
            )
    check(sampled(samplers[size], logits, requests), logits, requests)


def test_a_finished_grammar_ends_before_its_stops_are_held(samplers):
    logits = logits_of(12, 3, 500)
    held = Edits(held=np.array([7, 9]))
    requests = [
        RowRequest(GREEDY, 0.0, held, mask_of(500, [9])),
        RowRequest(GREEDY, 0.0, held, mask_of(500, [9, 11])),
        RowRequest(SamplingParams(), 0.3, held, mask_of(500, [])),
    ]
    results = sampled(samplers[500], logits, requests)
    assert [result.token for result in results] == [9, 11, -1]
    assert results[2].not_finite == 0


def test_nothing_left(samplers):
    logits = logits_of(13, 2, 63)
    banned = Edits(biased=np.arange(63), bias=np.full(63, -np.inf, dtype=np.float32))
    results = sampled(
        samplers[63], logits, [RowRequest(SamplingParams(), 0.5, banned), RowRequest(GREEDY, 0.0)]
    )
    assert (results[0].token, results[0].not_finite) == (-1, 0)
    assert results[1].token == int(logits[1, :63].argmax())


def test_edits_that_fill_their_room_several_times(samplers):
    every = np.arange(500)
    zeros = np.zeros(500, dtype=np.float32)
    edits = Edits(every, 1.5, every, zeros + 0.5, every, zeros - 0.25, every[:499])
    logits = logits_of(14, 5, 500)
    requests = [dataclasses.replace(request, edits=edits) for request in requests_of(5)]
    check(sampled(samplers[500], logits, requests), logits, requests)


def test_logprobs_are_those_of_the_raw_row(samplers):
    logits = logits_of(15, 3, VOCABULARY)
    request = with_edits(RowRequest(SamplingParams(top_k=5, logprobs=20), 0.4), VOCABULARY)
    for row, result in zip(logits, sampled(samplers[VOCABULARY], logits, [request] * 3), strict=True):
        exact = torch.log_softmax(row.double(), 0)
        found = [logit - result.logprobs.log_total for _, logit in result.logprobs.top]
        best = exact.sort(descending=True, stable=True)
        assert [token for token, _ in result.logprobs.top] == best.indices[:20].tolist()
        np.testing.assert_allclose(found, best.values[:20].numpy(), rtol=0, atol=1e-5)
        assert result.logprobs.logit == row[result.token].item()


@pytest.mark.parametrize("params", [SETTINGS[1], SETTINGS[2], SETTINGS[3]])
def test_frequencies_match_probabilities(samplers, params):
    """Chi-squared over evenly spread points: what is drawn is what is left of the distribution."""
    draws, logits = 10_000, logits_of(16, 1, 500, scale=1.5)
    row = logits[0, :500].numpy()
    expected = np.exp((row - row.max()).astype(np.float64) / params.temperature)
    best_first = np.argsort(-row, kind="stable")
    expected[best_first[params.top_k or 500 :]] = 0.0
    if params.top_p < 1.0:
        running = np.cumsum(expected[best_first]) / expected.sum()
        expected[best_first[int(np.searchsorted(running, params.top_p)) + 1 :]] = 0.0
    expected *= draws / expected.sum()
    requests = [RowRequest(params, (n + 0.5) / draws) for n in range(draws)]
    many = logits.expand(16, -1).contiguous()
    results = []
    for first in range(0, draws, 16):
        results += sampled(samplers[500], many, requests[first : first + 16])
    counts = np.bincount([result.token for result in results], minlength=500)
    assert np.abs(counts - expected).max() <= 1.5
