import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import distribution, processed

from tandem.core.batch import SequenceSpec
from tandem.core.errors import RequestError, TandemError
from tandem.core.requests import SamplingParams
from tandem.kernels.sampling import reference
from tandem.sampling.drawn import drawn_by_kernel
from tandem.sampling.host import draws
from tandem.sampling.sequence import SequenceSampler
from tandem.sampling.verify import verify

quick = settings(max_examples=60, deadline=None, derandomize=True)
GREEDY = SamplingParams(temperature=0.0)


def row(seed: int, length: int = 500) -> np.ndarray:
    values = (np.random.default_rng(seed).standard_normal(length) * 3).astype(np.float32)
    values.setflags(write=False)  # sampling must never write into the engine's logits
    return values


def sampler(params: SamplingParams, prompt=(1, 2, 3), output=(), **extra) -> SequenceSampler:
    return SequenceSampler(SequenceSpec(params, (*prompt, *output), len(prompt), **extra))


def next_token(drawn: SequenceSampler, logits: np.ndarray):
    """The token and its logprob, as plain decoding takes them."""
    accepted = verify(drawn, draws(drawn, [logits]))
    return accepted.tokens[0], accepted.logprobs[0]


class AllowList:
    """A constraint that allows the n-th set of tokens at the n-th output."""

    def __init__(self, *allowed: set[int] | None) -> None:
        self.allowed = list(allowed)
        self.taken: list[int] = []

    def token_mask(self) -> bytes | None:
        allowed = self.allowed[len(self.taken)]
        if allowed is None:
            return None
        mask = bytearray(500 // 8 + 1)
        for token in allowed:
            mask[token // 8] |= 1 << token % 8
        return bytes(mask)

    def accept(self, token_id: int) -> None:
        allowed = self.allowed[len(self.taken)]
        if allowed is not None and token_id not in allowed:
            raise TandemError("not allowed")
        self.taken.append(token_id)


@quick
@given(
    st.builds(
        SamplingParams,
        temperature=st.just(0.0),
        presence_penalty=st.sampled_from([-2.0, 0.0, 1.5]),
        frequency_penalty=st.sampled_from([-2.0, 0.0, 0.7]),
        repetition_penalty=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
        logit_bias=st.sampled_from([(), ((4, 3.0), (9, -100.0)), ((0, 100.0),)]),
    ),
    st.lists(st.integers(0, 499), min_size=1, max_size=100),
    st.lists(st.integers(0, 20), max_size=40),
)
def test_greedy_follows_the_reference_over_a_whole_sequence(params, prompt, output):
    drawn = sampler(params, prompt, output)
    for step in range(6):
        logits = row(step)
        expected = processed(logits, params, prompt, output)
        token, _ = next_token(drawn, logits)
        assert expected[token] >= expected.max() - 1e-5
        output = [*output, token]


def test_presence_and_frequency_count_output_repetition_counts_the_prompt_too():
    logits = np.zeros(500, dtype=np.float32)
    logits[[5, 6, 7]] = [3.0, 2.0, 1.5]
    presence = dataclasses.replace(GREEDY, presence_penalty=2.0)
    assert next_token(sampler(presence, prompt=(5, 6)), logits)[0] == 5
    assert next_token(sampler(presence, prompt=(6,), output=(5,)), logits)[0] == 6
    frequency = dataclasses.replace(GREEDY, frequency_penalty=0.8)
    assert next_token(sampler(frequency, output=(5,)), logits)[0] == 5
    assert next_token(sampler(frequency, output=(5, 5)), logits)[0] == 6
    repetition = dataclasses.replace(GREEDY, repetition_penalty=4.0)
    assert next_token(sampler(repetition, prompt=(5, 6)), logits)[0] == 7


def test_a_ban_is_absolute_at_high_temperature():
    """Cases F4, L3: −100 is a ban, at temperature 2 and even at 100."""
    logits = row(0)
    best = int(logits.argmax())
    for temperature in (0.0, 1.0, 2.0, 100.0):
        params = SamplingParams(temperature=temperature, top_k=3, logit_bias=((best, -100.0),))
        drawn = sampler(params)
        assert best not in {next_token(drawn, logits)[0] for _ in range(100)}


def test_bias_alone_leaves_the_distribution_random():
    """Case F4: a bias must not turn sampling into greedy decoding."""
    params = SamplingParams(temperature=1.0, logit_bias=((3, 1.0),))
    logits = row(1) / 3
    drawn = sampler(params)
    tokens = [next_token(drawn, logits)[0] for _ in range(3000)]
    assert len(set(tokens)) > 100
    expected = distribution(processed(logits, params, [], []), params)
    assert abs(tokens.count(3) / 3000 - expected[3]) < 0.02


@pytest.mark.parametrize("token", [-1, 500, 99_999_999])
def test_bias_outside_the_vocabulary_is_this_request_s_error(token):
    with pytest.raises(RequestError, match="logit_bias") as caught:
        next_token(sampler(SamplingParams(logit_bias=((token, 5.0),))), row(0))
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 250, 499])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_p=0.9)], ids=["greedy", "random"])
def test_logits_that_are_not_finite_are_refused(value, position, params):
    logits = row(0).copy()
    logits[position] = value
    with pytest.raises(TandemError, match="1 of 500 are NaN or inf"):
        next_token(sampler(params), logits)


def test_min_tokens_holds_the_stop_ids_back_until_then():
    logits = np.zeros(500, dtype=np.float32)
    logits[[7, 8]] = [5.0, 4.0]
    params = dataclasses.replace(GREEDY, min_tokens=3)
    stops = frozenset({7, 8, 10_000})
    drawn = sampler(params, stop_token_ids=stops)
    assert [next_token(drawn, logits)[0] for _ in range(4)] == [0, 0, 0, 7]
    resumed = sampler(params, output=(0, 0), stop_token_ids=stops)
    assert [next_token(resumed, logits)[0] for _ in range(2)] == [0, 7]


def test_the_grammar_rules_and_is_advanced():
    logits = row(3)
    constraint = AllowList({5, 9}, None, {499})
    drawn = sampler(SamplingParams(temperature=2.0), constraint=constraint)
    tokens = [next_token(drawn, logits)[0] for _ in range(3)]
    assert tokens == constraint.taken
    assert tokens[0] in {5, 9}
    assert tokens[2] == 499


def test_tokens_beyond_a_short_mask_are_forbidden():
    logits = np.zeros(600, dtype=np.float32)
    logits[599] = 9.0
    assert next_token(sampler(GREEDY, constraint=AllowList({4})), logits)[0] == 4


def test_a_finished_grammar_ends_before_min_tokens():
    params = dataclasses.replace(GREEDY, min_tokens=10)
    drawn = sampler(params, stop_token_ids=frozenset({2}), constraint=AllowList({2}))
    assert next_token(drawn, row(0))[0] == 2


def test_nothing_left_to_sample_is_an_error():
    params = SamplingParams(logit_bias=((5, -100.0),))
    with pytest.raises(RequestError, match="No token is left"):
        next_token(sampler(params, constraint=AllowList({5})), row(0))


@quick
@given(st.integers(0, 20), st.sampled_from([1, 7, 500, 3000]), st.integers(0, 99))
def test_logprobs_are_the_raw_log_softmax(top, length, seed):
    logits = row(seed, length)
    params = SamplingParams(
        temperature=0.5, top_k=3, logprobs=top, repetition_penalty=1.5, logit_bias=((0, 3.0),), seed=seed
    )
    token, logprob = next_token(sampler(params, prompt=(0,)), logits)
    exact = logits.astype(np.float64) - math.log(np.exp(logits.astype(np.float64)).sum())
    assert logprob is not None
    assert logprob.token_id == token
    assert logprob.logprob == pytest.approx(exact[token], abs=1e-5)
    assert len(logprob.top) == min(top, length)
    assert [i for i, _ in logprob.top] == list(np.argsort(-logits, kind="stable")[:top])
    assert [v for _, v in logprob.top] == pytest.approx([exact[i] for i, _ in logprob.top], abs=1e-5)
    assert all(v <= 0.0 for _, v in logprob.top)


def test_no_logprobs_unless_asked():
    assert next_token(sampler(GREEDY), row(0))[1] is None


@quick
@given(st.integers(0, 1000), st.integers(0, 5), st.booleans())
def test_a_sequence_resumes_after_preemption_with_the_same_tokens(seed, cut, penalties):
    """Case F5: the n-th token depends on (seed, n) and the history alone."""
    params = SamplingParams(
        temperature=1.3,
        seed=seed,
        frequency_penalty=0.5 * penalties,
        repetition_penalty=1.0 + 0.2 * penalties,
    )
    whole = sampler(params)
    tokens = [next_token(whole, row(n))[0] for n in range(6)]
    resumed = sampler(params, output=tuple(tokens[:cut]))
    assert resumed.output_tokens == cut
    assert [next_token(resumed, row(n))[0] for n in range(cut, 6)] == tokens[cut:]


class TestVerify:
    PARAMS = SamplingParams(temperature=1.5, seed=9, frequency_penalty=1.0, logprobs=2)

    def plain(self, rows, **extra):
        drawn = sampler(self.PARAMS, **extra)
        return [next_token(drawn, logits) for logits in rows]

    @pytest.mark.parametrize("right", range(6))
    def test_accepts_exactly_the_drafts_that_plain_decoding_would_draw(self, right):
        rows = [row(n) for n in range(6)]
        plain = self.plain(rows)
        draft = [token for token, _ in plain[:-1]]
        if right < 5:
            draft[right] = (draft[right] + 1) % 500
        drawn = sampler(self.PARAMS)
        accepted = verify(drawn, draws(drawn, rows), draft)
        assert accepted.tokens == tuple(token for token, _ in plain[: right + 1])
        assert accepted.logprobs == tuple(logprob for _, logprob in plain[: right + 1])
        assert drawn.output_tokens == right + 1

    @pytest.mark.parametrize("right", range(6))
    def test_draws_made_ahead_along_the_draft_are_accepted_alike(self, right):
        """As on a card: every row is drawn before the first draw is looked at."""
        rows = [row(n) for n in range(6)]
        plain = self.plain(rows)
        draft = [token for token, _ in plain[:-1]]
        if right < 5:
            draft[right] = (draft[right] + 1) % 500
        ahead, drawn = sampler(self.PARAMS), []
        for logits, token in zip(rows, [*draft, 0], strict=True):
            drawn.append(drawn_by_kernel(reference.sample(logits, ahead.ask(500)), 500))
            ahead.accept(token)
        accepted = verify(sampler(self.PARAMS), drawn, draft)
        assert accepted.tokens == tuple(token for token, _ in plain[: right + 1])

    def test_without_a_draft_one_row_gives_one_token(self):
        drawn = sampler(GREEDY)
        assert verify(drawn, draws(drawn, [row(0)])).tokens == (int(row(0).argmax()),)

    def test_ends_at_a_stop_token_and_leaves_the_grammar_there(self):
        logits = np.zeros(500, dtype=np.float32)
        constraint = AllowList({4}, {2})
        drawn = sampler(GREEDY, stop_token_ids=frozenset({2}), constraint=constraint)
        assert verify(drawn, draws(drawn, [logits] * 4), [4, 2, 7]).tokens == (4, 2)

    def test_an_allowed_draft_never_breaks_the_grammar(self):
        """Case L4: each accepted token advances the grammar before the next is drawn."""
        rows = [row(n) for n in range(3)]
        constraint = AllowList(None, {3}, {8, 9})
        drawn = sampler(GREEDY, constraint=constraint)
        draft = [int(rows[0].argmax()), int(rows[1].argmax())]
        tokens = verify(drawn, draws(drawn, rows), draft).tokens
        assert tokens == (int(rows[0].argmax()), 3)
        assert constraint.taken == list(tokens)
