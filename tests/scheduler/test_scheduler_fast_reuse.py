"""Approximate prefix reuse: answers are reused by the next turn, and nothing else becomes possible.

The contract engine checks on every run that each page and each state read was computed from the sequence's
own tokens, so a stale one fails whatever the output.
"""

from __future__ import annotations

import random

import pytest
from contract_engine import VOCABULARY
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from scheduling import Bench, RecordingSink, make_limits, make_request, prompt_of

from tandem.core.batch import RunKind
from tandem.core.requests import FinishReason
from tandem.scheduler.config import PrefixReuse, SchedulerConfig

CHUNK = 8
FAST = SchedulerConfig(prefix_reuse="fast", loop_guard_tokens=0)
EXACT = SchedulerConfig(prefix_reuse="exact", loop_guard_tokens=0)


def ask(bench: Bench, name: str, prompt: tuple[int, ...], max_tokens: int = 20) -> RecordingSink:
    sink = bench.add(make_request(name, prompt, max_tokens=max_tokens))
    bench.run()
    return sink


def cached(sink: RecordingSink) -> int:
    return sink.finish.usage.cached_tokens


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("checkpoints", [0, 1, 4])
@pytest.mark.parametrize("length", [1, 3, 7, 8, 9, 16, 21])
def test_next_turn_reuses_the_answer(length: int, checkpoints: int, depth: int) -> None:
    bench = Bench(make_limits(state_checkpoints=checkpoints, pipeline_depth=depth), FAST)
    prompt = prompt_of(1, length)
    for turn in range(3):
        answer = ask(bench, str(turn), prompt)
        assert len(answer.tokens) == 20
        # The last token of an answer is sampled and never computed.
        computed = len(prompt) + 19
        prompt = (*prompt, *answer.tokens, 1 + turn)
        assert cached(ask(bench, f"again {turn}", prompt, 1)) == computed // CHUNK * CHUNK


@pytest.mark.parametrize("checkpoints", [0, 4])
def test_exact_reuses_no_generated_position(checkpoints: int) -> None:
    bench = Bench(make_limits(state_checkpoints=checkpoints), EXACT)
    answer = ask(bench, "turn", prompt_of(1, 21), 30)
    assert all(not node.approximate and node.depth <= 2 for node in bench.published())
    follow_up = make_request("next", (*prompt_of(1, 21), *answer.tokens, 1))
    sink = bench.add(follow_up)
    bench.run()
    assert cached(sink) == 16
    assert sink.tokens == bench.alone(follow_up)
    saved = [run for b in bench.engine.batches for run in b.runs if run.save_checkpoint is not None]
    assert all(run.kind is RunKind.PREFILL for run in saved)


@pytest.mark.parametrize("checkpoints", [0, 6])
def test_an_edited_answer_is_reused_up_to_the_edit(checkpoints: int) -> None:
    limits = make_limits(total_pages=200, context_tokens=200, state_checkpoints=checkpoints)
    bench = Bench(limits, FAST)
    prompt = prompt_of(2, 13)
    turn = (*prompt, *ask(bench, "first", prompt, 50).tokens)
    for edit in (0, 7, 8, 12, 13, 15, 16, 17, 40, 55):
        changed = (*turn[:edit], VOCABULARY, *turn[edit + 1 :])
        assert cached(ask(bench, f"edit {edit}", changed)) <= edit // CHUNK * CHUNK


def test_a_cancelled_answer_is_reused_as_far_as_it_was_computed() -> None:
    bench = Bench(make_limits(), FAST)
    sink = bench.add(make_request("cut", prompt_of(1, 10), max_tokens=60))
    while len(sink.tokens) < 17:
        bench.step()
    bench.scheduler.cancel("cut")
    assert sink.finish.reason is FinishReason.CANCELLED
    assert cached(ask(bench, "next", (*prompt_of(1, 10), *sink.tokens, 3))) == 24


@pytest.mark.parametrize("checkpoints", [0, 4])
def test_exact_takes_the_place_of_approximate_and_not_the_other_way_round(checkpoints: int) -> None:
    bench = Bench(make_limits(state_checkpoints=checkpoints), FAST)
    answer = ask(bench, "turn", prompt_of(1, 10))
    assert [node.approximate for node in bench.published()] == [False, True, True]
    # This prompt ends where a chunk ends, so its last chunk is computed whatever is published.
    whole = (*prompt_of(1, 10), *answer.tokens)[:16]
    ask(bench, "whole", whole, 1)
    nodes = bench.published()
    assert [node.approximate for node in nodes] == [False, False]
    if checkpoints:
        assert all(node.checkpoint is not None for node in nodes)
    pages = nodes[1].pages
    ask(bench, "turn again", prompt_of(1, 10))
    nodes = bench.published()
    assert nodes[1].pages == pages
    assert [node.approximate for node in nodes[:2]] == [False, False]


def test_what_is_built_on_an_approximate_chunk_is_approximate() -> None:
    bench = Bench(make_limits(), FAST)
    answer = ask(bench, "turn", prompt_of(1, 10))
    ask(bench, "next", (*prompt_of(1, 10), *answer.tokens, *prompt_of(3, 30)), 1)
    assert [node.approximate for node in bench.published()] == [False] + [True] * 6


def test_a_long_answer_costs_one_checkpoint() -> None:
    bench = Bench(make_limits(total_pages=100, state_checkpoints=3), FAST)
    ask(bench, "other", prompt_of(2, 17), 2)
    ask(bench, "long", prompt_of(1, 9), 80)
    assert sorted(node.depth for node in bench.checkpointed().values()) == [1, 2, 11]


def test_a_fault_takes_the_answer_out_of_the_index() -> None:
    bench = Bench(make_limits(), FAST, faulty_seeds=frozenset({13}))
    bench.engine.faulty_start = 30
    broken = bench.add(make_request("broken", prompt_of(1, 3), seed=13, max_tokens=40))
    bench.run()
    assert broken.finish.reason is FinishReason.ERROR
    assert bench.published() == []


def play(reuse: PrefixReuse, number: int) -> tuple[Bench, int]:
    """Crowded conversations with edits, cancellations, preemptions; how many prompt tokens were reused."""
    rng = random.Random(number)
    page_tokens = rng.choice([1, 2, 4])
    limits = make_limits(
        page_tokens=page_tokens,
        chunk_tokens=page_tokens * rng.randint(1, 3),
        total_pages=rng.randint(8, 24) * 4 // page_tokens,
        max_slots=rng.randint(1, 5),
        max_step_rows=rng.choice([1, 2, 5, 16, 40]),
        context_tokens=rng.randint(30, 70),
        pipeline_depth=rng.randint(1, 4),
        state_checkpoints=rng.choice([0, 0, 1, 2, 5, 9]),
    )
    config = SchedulerConfig(prefix_reuse=reuse, loop_guard_tokens=0)
    bench = Bench(limits, config, eager=rng.random() < 0.5)
    talks = [prompt_of(text, rng.randint(1, 12)) for text in (0, 0, 1, 2)]
    reused = 0
    for turn in range(4):
        sinks: list[tuple[int, tuple[int, ...], RecordingSink]] = []
        for i, talk in enumerate(talks):
            prompt = talk[: bench.context_tokens - 8]
            request = make_request(f"{turn} {i}", prompt, seed=i % 2, max_tokens=rng.randint(1, 25))
            sinks.append((i, prompt, bench.add(request)))
            for _ in range(rng.randint(0, 4)):
                bench.submit()
                bench.commit()
        if rng.random() < 0.5:
            bench.scheduler.cancel(f"{turn} {rng.randrange(len(talks))}")
        bench.run()
        for i, prompt, sink in sinks:
            reused += cached(sink)
            talk = (*prompt, *sink.tokens, *prompt_of(i, rng.randint(0, 5)))
            edit = rng.randrange(len(talk))
            talks[i] = (*talk[:edit], 20, *talk[edit + 1 :]) if rng.random() < 0.3 else talk
    return bench, reused


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(number=st.integers(0, 10**6))
def test_crowded_conversations(number: int) -> None:
    """Pages are conserved after every move, and nothing stale is read (the engine checks)."""
    bench, reused = play("fast", number)
    stats = bench.scheduler.snapshot
    assert stats.prefix_hit_tokens_total == reused
    for node in bench.published():
        assert node.parent is not None
        assert node.approximate or not node.parent.approximate
    event(f"preempted: {stats.preemptions_total > 0}")
    event(f"decode-made state: {any(node.approximate for node in bench.checkpointed().values())}")


@pytest.mark.parametrize("block", range(2))
def test_the_same_conversations_under_exact(block: int) -> None:
    fast = exact = 0
    for number in range(20 * block, 20 * block + 20):
        bench, reused = play("exact", number)
        assert not any(node.approximate for node in bench.published())
        exact += reused
        fast += play("fast", number)[1]
    assert fast > exact
