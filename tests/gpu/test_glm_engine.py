"""A small GLM on a card through engine and scheduler: greedy tokens are the same whatever else happens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.gpu.cards import NEEDS_CARD
from tests.gpu.engine_rig import CHUNK, GREEDY, Serving, logits_of
from tests.gpu.test_glm_rows import tokens_of

from tandem.core.batch import Batch, Run, RunKind, SequenceSpec
from tandem.core.requests import SamplingParams
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS

pytestmark = NEEDS_CARD
PROMPTS = [tokens_of(seed, length) for seed, length in enumerate((5, 64, 70, 129, 200, 33, 300, 17))]


@pytest.fixture(scope="module")
def cold():
    """One stage; nothing is reused."""
    with Serving(reuse="off") as serving:
        yield serving


@pytest.fixture(scope="module")
def alone(cold):
    """Every prompt's answer while nobody else is served."""
    return [cold.send(prompt).tokens for prompt in PROMPTS]


def test_answers_differ_and_are_no_constants(alone):
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)
    assert all(len(set(tokens)) > 4 for tokens in alone)


@pytest.mark.parametrize(
    ("cuts", "reuse"),
    [((), "exact"), ((2,), "off"), ((3,), "exact")],
    ids=["1 stage", "2 stages", "cut at 3"],
)
def test_beside_seven_others(alone, cuts, reuse):
    with Serving(cuts, reuse=reuse) as serving:
        answers = [serving.send(prompt) for prompt in PROMPTS]
        assert [answer.tokens for answer in answers] == alone


SAMPLED = [
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_p=0.95),
    SamplingParams(seed=3, temperature=0.7, top_k=50, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(seed=4, min_p=0.02, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(seed=5, temperature=2.0, logit_bias=((3, 4.0), (9, -100.0))),
]


def test_sampled_answers_are_those_alone_and_those_of_the_host(cold):
    asked = list(zip(PROMPTS, SAMPLED, strict=False))
    alone = [cold.send(prompt, sampling=params).tokens for prompt, params in asked]
    together = [cold.send(prompt, sampling=params) for prompt, params in asked]
    assert [answer.tokens for answer in together] == alone
    (stage,) = cold.stages
    on_card, stage._row_sampler = stage._row_sampler, None
    try:
        assert [cold.send(prompt, sampling=params).tokens for prompt, params in asked] == alone
    finally:
        stage._row_sampler = on_card


@pytest.mark.parametrize("cuts", [(), (2,)], ids=["one-stage", "two-stages"])
def test_a_reused_prefix_changes_nothing(cold, cuts):
    first = tokens_of(20, 150)
    asked = [first, first, first[:130] + tokens_of(21, 90), first[:64] + tokens_of(22, 3)]
    expected = [cold.send(prompt).tokens for prompt in asked]
    with Serving(cuts) as warm:
        answers = []
        for prompt in asked:
            answers.append(warm.send(prompt))
            assert answers[-1].finish.error is None
        assert [answer.tokens for answer in answers] == expected
        assert [answer.finish.usage.cached_tokens for answer in answers] == [0, 128, 128, 64]


def test_fast_reuse_continues_a_conversation(cold):
    """State made by rows is folded before prefill goes on from it."""
    with Serving(reuse="fast") as serving:
        prompt = tokens_of(30, 60)
        turn = [*prompt, *serving.send(prompt, 80).tokens, *tokens_of(31, 20)]
        answer = serving.send(turn)
        assert answer.finish.usage.cached_tokens == 128
        expected = cold.send(turn).tokens
        same = sum(a == b for a, b in zip(answer.tokens, expected, strict=True))
        assert same > 12, (answer.tokens, expected)


def test_replayed_rows_give_the_token_of_single_steps(cold, alone):
    """A sequence whose output is replayed in runs of 1 to 16 rows, beside padding where counts need it."""
    prompt, output = PROMPTS[2], alone[2]
    known = [*prompt, *output[:-1]]
    for rows in range(1, 17):
        slot, pages = rows % 8, tuple(range(16 * (rows % 8), 16 * (rows % 8) + 16))
        cold.engine.open_sequence(slot, SequenceSpec(GREEDY, tuple(known), len(prompt)))
        spans = [(start, min(start + CHUNK, len(prompt))) for start in range(0, len(prompt), CHUNK)]
        kinds = [RunKind.PREFILL] * len(spans)
        spans += [(p, min(p + rows, len(known))) for p in range(len(prompt), len(known), rows)]
        kinds += [RunKind.ROWS] * (len(spans) - len(kinds))
        for step, ((start, end), kind) in enumerate(zip(spans, kinds, strict=True)):
            run = Run(slot, kind, tuple(known[start:end]), start, pages, sample=end == len(known))
            result = cold.engine.submit(Batch(step, (run,))).result(60)
        assert result.sampled[0].tokens == (output[-1],), rows
        cold.engine.close_sequence(slot)


def test_where_a_prompt_ends_does_not_matter(cold):
    """Chunks that others have computed, whatever came after them, answer as the prompt's own do."""
    lengths = (63, 64, 65, 127, 128, 130, 199)
    with Serving() as warm:
        for seed, order in ((40, lengths), (41, lengths[::-1])):
            prompt = tokens_of(seed, 200)
            for length in order:
                asked = prompt[:length]
                assert warm.send(asked, 6).tokens == cold.send(asked, 6).tokens, (seed, length)


@pytest.mark.parametrize("cache", ["fp16", "q8"])
def test_logits_equal_the_cpus(cache):
    """A prompt's chunks and the rows after it. Every expert is chosen, so that no tie of the router flips."""
    spec = dataclasses.replace(SMALL, num_experts=4)
    tokens = tokens_of(50, 130)
    source = RandomCheckpoint(spec, SMALL_BITS, torch.device("cpu"))
    found, expected = (logits_of(kind, spec, source, cache, tokens) for kind in ("cuda", "cpu"))
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    print(cache, [f"{float(e):.1e}" for e in error])
    assert error[:60].median() < (1e-2 if cache == "fp16" else 3e-2)
    assert error.median() < (3e-2 if cache == "fp16" else 5e-2)
