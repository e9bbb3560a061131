"""The engine where the model samples on its card, played by the kernel's reference: what the host draws."""

from __future__ import annotations

import dataclasses

import pytest
from engine_driver import GREEDY
from engine_rig import Rig, expected, prompt
from fake_stage import VOCAB

from tandem.core.errors import TandemError
from tandem.core.requests import SamplingParams
from tandem.kernels.sampling import reference


class ReferenceSampler:
    """Implements RowSampler. ``asked`` counts rows, those of which nothing was asked apart."""

    def __init__(self) -> None:
        self.asked = self.skipped = 0

    def sample(self, logits, requests):
        self.asked += sum(request is not None for request in requests)
        self.skipped += sum(request is None for request in requests)
        rows = logits.numpy()
        return [
            None if request is None else reference.sample(row, request)
            for row, request in zip(rows, requests, strict=True)
        ]


class OddTokens:
    """A constraint that allows odd tokens alone, and breaks at the output given."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.taken: list[int] = []
        self.breaks_at = breaks_at

    def token_mask(self) -> bytes | None:
        if len(self.taken) == self.breaks_at:
            raise TandemError("the grammar broke")
        return bytes([0b10101010] * (VOCAB // 8 + 1))

    def accept(self, token_id: int) -> None:
        assert token_id % 2
        self.taken.append(token_id)


ASKED = [
    GREEDY,
    SamplingParams(temperature=20.0, seed=1),
    SamplingParams(temperature=20.0, top_p=0.9, seed=2, logprobs=5),
    SamplingParams(temperature=5.0, top_k=30, min_p=0.01, seed=3, repetition_penalty=1.3),
    SamplingParams(temperature=9.0, seed=4, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(temperature=0.0, logit_bias=((5, 3.0), (9, -100.0)), logprobs=0),
]


def outputs(on_card: bool):
    with Rig(2) as rig:
        if on_card:
            rig.models[1].row_sampler = ReferenceSampler()
        sequences = [rig.driver.open(prompt(6 + n), params) for n, params in enumerate(ASKED)]
        sequences.append(rig.driver.open(prompt(9), ASKED[1], constraint=OddTokens()))
        logprobs = []
        for _ in range(12):
            logprobs += [s.logprobs for s in rig.driver.advance(sequences).sampled if s.slot in (2, 5)]
        if on_card:
            assert rig.models[1].row_sampler.asked == sum(len(sequence.output) for sequence in sequences)
        return [sequence.output for sequence in sequences], logprobs


def test_tokens_and_logprobs_are_those_of_the_host():
    (host, host_logprobs), (card, card_logprobs) = outputs(False), outputs(True)
    assert card == host
    for (one,), (other,) in zip(host_logprobs, card_logprobs, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": SamplingParams(logit_bias=((VOCAB, 1.0),))}, f"vocabulary of {VOCAB}"),
        ({"constraint": OddTokens(breaks_at=0)}, "the grammar broke"),
        (
            {"sampling": SamplingParams(logit_bias=tuple((n, -100.0) for n in range(VOCAB)))},
            "No token is left",
        ),
    ],
    ids=["bias", "grammar", "nothing left"],
)
def test_a_sequence_that_cannot_be_sampled_ends_alone(options, message):
    with Rig(2) as rig:
        sampler = rig.models[1].row_sampler = ReferenceSampler()
        good, bad = rig.driver.open(prompt(6)), rig.driver.open(prompt(7), **options)
        result = rig.engine.submit(rig.driver.batch([rig.driver.run(bad), rig.driver.run(good)])).result(30)
        (fault,) = result.faults
        assert fault.slot == bad.slot
        assert message in fault.message
        assert fault.asked_for == (message != "the grammar broke")
        assert (sampler.skipped == 1) == (message != "No token is left")
        rig.driver.take(dataclasses.replace(result, faults=()))
        rig.driver.close(bad)
        assert rig.driver.generate(good, 4) == expected(prompt(6), 4)


def test_logits_that_are_not_finite_end_their_sequence_alone():
    with Rig(2) as rig:
        rig.models[1].row_sampler = ReferenceSampler()
        good, bad = rig.driver.open(prompt(6)), rig.driver.open(prompt(7, seed=1))
        rig.driver.advance([good, bad])
        (rig.models[1].poisoned,) = expected(prompt(7, seed=1), 2)[1:]
        result = rig.engine.submit(rig.driver.batch([rig.driver.run(bad), rig.driver.run(good)])).result(30)
        (fault,) = result.faults
        assert (fault.slot, "1 of 97 are NaN or inf" in fault.message) == (bad.slot, True)
        assert [sampled.slot for sampled in result.sampled] == [good.slot]
