"""Layouts, page tables, order and sampling, against a model whose every value is known."""

import dataclasses
import random

import pytest
from engine_driver import GREEDY
from engine_rig import Rig, expected, prompt
from fake_stage import VOCAB
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.core.batch import Batch, RunKind, SequenceSpec
from tandem.core.errors import RequestError, TandemError
from tandem.core.requests import SamplingParams


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63])
def test_prompts_around_page_and_chunk_edges(stages, length):
    with Rig(stages) as rig:
        sequence = rig.driver.open(prompt(length))
        assert rig.driver.generate(sequence, 6) == expected(prompt(length), 6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(0, 10_000))
def test_any_mixture_of_sequences_in_any_batches(stages, seed):
    """Sequences come and go, prompts in chunks beside rows of others, slots and pages reused."""
    dice = random.Random(seed)
    with Rig(stages) as rig:
        driver = rig.driver
        running, started = [], 0
        for _ in range(25):
            if started < 10 and len(running) < 8 and dice.random() < 0.5:
                running.append(driver.open(prompt(dice.randint(1, 20), started)))
                started += 1
            chosen = [s for s in running if dice.random() < 0.7]
            driver.advance(chosen)
            for sequence in list(running):
                if len(sequence.output) >= dice.randint(3, 8):
                    start = sequence.history[: sequence.prompt_length]
                    assert sequence.output == expected(start, len(sequence.output))
                    driver.close(sequence)
                    driver.free_pages[:0] = sequence.pages
                    running.remove(sequence)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("rows", range(1, 17))
def test_replay_of_1_to_16_rows_a_run(stages, rows):
    """After a preemption generated tokens come back as ROWS runs; only the last row samples."""
    tokens = expected(prompt(5), 17)
    with Rig(stages) as rig:
        sequence = rig.driver.open(prompt(5), output=tokens[:16])
        other = rig.driver.open(prompt(9, seed=1))
        rig.driver.generate(other, 3)
        assert (
            rig.driver.generate(sequence, 18, beside=[other], rows=rows)[16:] == expected(prompt(5), 18)[16:]
        )
        assert other.output == expected(prompt(9, seed=1), len(other.output))


def test_shared_pages_are_read_and_not_written():
    with Rig(2) as rig:
        first = rig.driver.open(prompt(19))
        rig.driver.generate(first, 4)
        shared = first.pages[:4]  # two chunks of 8 positions
        before = [model.cache[:, list(shared)].clone() for model in rig.models]
        second = rig.driver.open([*prompt(16), 1, 2], shared_pages=shared)
        # The fake model's recurrent state must be resumed where the shared pages end.
        third = rig.driver.open(prompt(16))
        run = rig.driver.run(third)
        rig.engine.submit(rig.driver.batch([run])).result(30)
        run = rig.driver.run(third, save_checkpoint=5)
        rig.engine.submit(rig.driver.batch([run])).result(30)
        run = rig.driver.run(second, restore_checkpoint=5)
        rig.driver.take(rig.engine.submit(rig.driver.batch([run])).result(30))
        assert rig.driver.generate(second, 3) == expected([*prompt(16), 1, 2], 3)
        for model, kept in zip(rig.models, before, strict=True):
            assert model.cache[:, list(shared)].equal(kept)


def test_a_page_table_may_be_replaced_altogether():
    """A slot's next owner has other pages, and a shorter table than the last one."""
    with Rig(2, max_slots=1) as rig:
        for seed, length in enumerate([40, 3, 17, 9]):
            sequence = rig.driver.open(prompt(length, seed))
            assert rig.driver.generate(sequence, 4) == expected(prompt(length, seed), 4)
            rig.driver.close(sequence)
            rig.driver.free_pages[:0] = sequence.pages


def test_pages_of_the_last_chunk_may_reach_beyond_the_context():
    with Rig(context_tokens=10) as rig:
        sequence = rig.driver.open(prompt(9))
        sequence.pages = (5, 9, 2, 3)
        rig.driver.advance([sequence])
        rig.driver.advance([sequence])
        assert sequence.output == expected(prompt(9), 1)


def test_batches_submitted_ahead_are_executed_in_order():
    """Chunk i+1 of a prompt is submitted before chunk i is done; another sequence runs between."""
    with Rig(3) as rig:
        driver = rig.driver
        long, short = driver.open(prompt(64)), driver.open(prompt(8, seed=1))
        futures = [rig.engine.submit(driver.batch([driver.run(short)]))]
        futures += [rig.engine.submit(driver.batch([driver.run(long)])) for _ in range(8)]
        results = [future.result(30) for future in futures]
        assert [r.step for r in results] == list(range(1, 10))
        assert [len(r.sampled) for r in results] == [1, *[0] * 7, 1]
        for result in results:
            driver.take(result)
        assert long.output == expected(prompt(64), 1)
        assert short.output == expected(prompt(8, seed=1), 1)


def test_a_step_without_runs_is_done_at_once():
    with Rig() as rig:
        result = rig.engine.submit(Batch(7, ())).result(0)
        assert (result.step, result.sampled, result.faults) == (7, (), ())


def test_only_sampled_rows_pass_the_head_and_a_chunk_s_row_alone():
    with Rig() as rig:
        driver = rig.driver
        rows = [driver.open(prompt(3, seed)) for seed in range(3)]
        for sequence in rows:
            driver.generate(sequence, 1)
        chunks = [driver.open(prompt(12)), driver.open(prompt(8))]
        driver.advance([*rows, *chunks])
        assert rig.models[0].events[-5:] == ["rows 3", "logits 3", "prefill 0+8", "prefill 0+8", "logits 1"]


def test_checkpoints_and_resets_reach_every_stage_around_their_run():
    with Rig(2) as rig:
        driver = rig.driver
        sequence = driver.open(prompt(8))
        rig.engine.submit(driver.batch([driver.run(sequence, save_checkpoint=3)])).result(30)
        driver.close(sequence)
        again = driver.open(prompt(10))
        again.pages, again.done = sequence.pages, 8
        result = rig.engine.submit(driver.batch([driver.run(again, restore_checkpoint=3, save_checkpoint=4)]))
        assert result.result(30).sampled[0].tokens == tuple(expected(prompt(10), 1))
        wanted = ["reset 0", "prefill 0+8", "save 0 3", "reset 1", "restore 1 3", "prefill 8+2", "save 1 4"]
        for model in rig.models:
            assert [event for event in model.events if not event.startswith("logits")] == wanted


def test_layout_addresses_never_change_and_each_stage_keeps_to_its_thread():
    with Rig(2) as rig:
        sequences = [rig.driver.open(prompt(5, seed)) for seed in range(8)]
        for step in range(12):
            rig.driver.advance(sequences[step % 3 :])
        for model in rig.models:
            assert len(model.addresses) == 1
            assert len(model.threads) == 1
        assert rig.models[0].threads != rig.models[1].threads


class Constraint:
    def __init__(self, fails_at: str) -> None:
        self.fails_at = fails_at

    def token_mask(self) -> bytes | None:
        if self.fails_at == "mask":
            raise RuntimeError("broken grammar")
        return None

    def accept(self, token_id: int) -> None:
        if self.fails_at == "accept":
            raise TandemError("not allowed here")


@pytest.mark.parametrize(
    ("sampling", "constraint", "message"),
    [
        (GREEDY, Constraint("mask"), "RuntimeError: broken grammar"),
        (GREEDY, Constraint("accept"), "not allowed here"),
        (SamplingParams(logit_bias=((VOCAB, 1.0),)), None, "outside the vocabulary"),
    ],
    ids=["mask", "accept", "bias"],
)
def test_a_sequence_whose_sampling_fails_is_alone_in_it(sampling, constraint, message):
    with Rig(2) as rig:
        good = rig.driver.open(prompt(6))
        bad = rig.driver.open(prompt(6), sampling, constraint=constraint)
        result = rig.engine.submit(rig.driver.batch([rig.driver.run(good), rig.driver.run(bad)])).result(30)
        (fault,) = result.faults
        assert fault.slot == bad.slot
        assert message in fault.message
        assert [sampled.slot for sampled in result.sampled] == [good.slot]
        rig.driver.take(dataclasses.replace(result, faults=()))
        rig.driver.close(bad)
        assert rig.driver.generate(good, 4) == expected(prompt(6), 4)


def test_logits_that_are_not_finite_end_their_sequence_alone():
    with Rig(2) as rig:
        good, bad = rig.driver.open(prompt(6)), rig.driver.open(prompt(7, seed=1))
        rig.driver.advance([good, bad])
        (rig.models[1].poisoned,) = expected(prompt(7, seed=1), 2)[1:]
        result = rig.engine.submit(rig.driver.batch([rig.driver.run(bad), rig.driver.run(good)])).result(30)
        (fault,) = result.faults
        assert fault.slot == bad.slot
        assert "1 of 97 are NaN or inf" in fault.message
        rig.driver.take(dataclasses.replace(result, faults=()))
        rig.models[1].poisoned = None
        rig.driver.close(bad)
        assert rig.driver.generate(good, 5) == expected(prompt(6), 5)


@pytest.mark.parametrize("token", [-1, VOCAB, 99_999_999])
def test_a_prompt_token_outside_the_vocabulary_never_reaches_the_model(token):
    with Rig(2) as rig:
        spec = SequenceSpec(GREEDY, (3, token, 5), 3)
        with pytest.raises(RequestError, match=f"token {token}, vocabulary of {VOCAB}"):
            rig.engine.open_sequence(0, spec)
        sequence = rig.driver.open(prompt(6))
        assert rig.driver.generate(sequence, 2) == expected(prompt(6), 2)


def test_seeded_sequences_draw_alone_as_beside_others():
    """Cases F5, L5: the draw depends on the seed and the position, not on neighbours or on time."""

    def texts(together: bool) -> list[list[int]]:
        with Rig(2) as rig:
            options = [SamplingParams(temperature=30.0, seed=seed, top_p=0.9) for seed in (1, 2, 3, 4)]
            sequences = [rig.driver.open(prompt(6), option) for option in options]
            for sequence in sequences:
                rig.driver.generate(
                    sequence, 12, beside=[s for s in sequences if together and s is not sequence]
                )
            return [sequence.output[:12] for sequence in sequences]

    alone = texts(together=False)
    assert texts(together=True) == alone
    assert len({tuple(text) for text in alone}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 8}, "slots are 0..7"),
        ({"slot": -1}, "slots are 0..7"),
        ({"tokens": ()}, "0 tokens"),
        ({"tokens": (1,) * 9}, "9 tokens in a prefill run of 1..8"),
        ({"kind": RunKind.ROWS, "tokens": (1,) * 17}, "17 tokens in a rows run of 1..16"),
        ({"start": 4}, "no multiple of 8"),
        ({"start": 96}, "positions 96..98 of a context of 96"),
        ({"pages": ()}, "0 pages of 4 do not cover 3 tokens"),
        ({"pages": (64,)}, "pages are 0..63"),
        ({"pages": (-1,)}, "pages are 0..63"),
        ({"pages": (0,) * 25}, "25 pages; at most 24 a sequence"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused_and_harms_nothing(change, message):
    with Rig(2) as rig:
        sequence = rig.driver.open(prompt(3))
        run = rig.driver.run(sequence)
        with pytest.raises(ValueError, match=message):
            rig.engine.submit(Batch(1, (dataclasses.replace(run, **change),)))
        with pytest.raises(ValueError, match="twice"):
            rig.engine.submit(Batch(1, (run, run)))
        rig.driver.take(rig.engine.submit(Batch(1, (run,))).result(30))
        assert rig.driver.generate(sequence, 3) == expected(prompt(3), 3)
