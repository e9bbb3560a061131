"""Prefix reuse: what is shared, when, and that a hit changes nothing (cases K1, K6, K7)."""

from __future__ import annotations

import random

import pytest
from scheduling import Bench, RecordingSink, make_limits, make_request, prompt_of

from tandem.core.batch import RunKind
from tandem.core.requests import FinishReason
from tandem.scheduler.config import SchedulerConfig

CHUNK = 8


def serve(bench: Bench, name: str, prompt: tuple[int, ...], max_tokens: int = 4) -> RecordingSink:
    """One request, alone, to its end; its output is checked."""
    request = make_request(name, prompt, max_tokens=max_tokens)
    sink = bench.add(request)
    bench.run()
    assert sink.tokens == bench.alone(request)
    return sink


@pytest.mark.parametrize("checkpoints", [0, 4])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_prompt_sent_twice_recomputes_at_least_one_token(length: int, checkpoints: int) -> None:
    """Case K6: tiny, identical and chunk-edge prompts."""
    bench = Bench(make_limits(state_checkpoints=checkpoints))
    prompt = prompt_of(1, length)
    cold = serve(bench, "cold", prompt)
    warm = serve(bench, "warm", prompt)
    assert cold.tokens == warm.tokens
    assert cold.finish.usage.cached_tokens == 0
    cached = warm.finish.usage.cached_tokens
    assert cached < length
    if not checkpoints:
        assert cached == (length - 1) // CHUNK * CHUNK
    third = serve(bench, "third", prompt)
    assert third.finish.usage.cached_tokens == (length - 1) // CHUNK * CHUNK


@pytest.mark.parametrize("length", [15, 16, 17, 64])
def test_prompt_sent_twice_is_reused_though_all_checkpoints_are_taken(length: int) -> None:
    """A prompt of whole chunks resumes one chunk before its end: that boundary is worth a number too."""
    bench = Bench(make_limits(total_pages=200, state_checkpoints=3))
    for other in range(4):
        serve(bench, f"other {other}", prompt_of(10 + other, 40))
    prompt = prompt_of(1, length)
    serve(bench, "cold", prompt)
    assert serve(bench, "warm", prompt).finish.usage.cached_tokens == (length - 1) // CHUNK * CHUNK


@pytest.mark.parametrize("checkpoints", [0, 3, 20])
def test_early_edit_resumes_before_the_first_differing_token(checkpoints: int) -> None:
    """Case K1: 20 edit positions, chunk and page edges with their neighbours among them."""
    rng = random.Random(0)
    bench = Bench(make_limits(total_pages=200, context_tokens=200, state_checkpoints=checkpoints))
    prompt = prompt_of(3, 120)
    serve(bench, "first", prompt)
    edges = [position + d for position in (8, 16, 64) for d in (-1, 0, 1)] + [4, 11, 12, 0, 119]
    for edit in [*edges, *rng.sample(range(120), 6)]:
        changed = (*prompt[:edit], 20, *prompt[edit + 1 :])
        sink = serve(bench, f"edit {edit}", changed)
        assert sink.finish.usage.cached_tokens <= edit
        assert serve(bench, f"back {edit}", prompt).finish.usage.cached_tokens <= 119


def test_next_turn_reuses_the_whole_previous_prompt() -> None:
    for checkpoints in (0, 2):
        bench = Bench(make_limits(state_checkpoints=checkpoints, context_tokens=200))
        prompt = prompt_of(2, 30)
        previous = 0
        for turn in range(5):
            answer = serve(bench, str(turn), prompt)
            assert answer.finish.usage.cached_tokens == previous // CHUNK * CHUNK
            previous = len(prompt)
            prompt = (*prompt, *answer.tokens, *prompt_of(turn, 9))


def test_generated_tokens_are_never_shared() -> None:
    bench = Bench(make_limits())
    answer = serve(bench, "turn", prompt_of(1, 10), max_tokens=30)
    follow_up = (*prompt_of(1, 10), *answer.tokens, 1)
    assert serve(bench, "next", follow_up).finish.usage.cached_tokens == CHUNK


def test_running_requests_share_as_soon_as_a_chunk_is_published() -> None:
    bench = Bench(make_limits(max_slots=8))
    prompt = prompt_of(1, 41)
    requests = [make_request(str(i), prompt, seed=i) for i in range(8)]
    sinks = [bench.add(request) for request in requests]
    bench.run()
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.tokens == bench.alone(request)
    chunks = [run for batch in bench.engine.batches for run in batch.runs if run.kind is RunKind.PREFILL]
    assert len(chunks) == 5 + 8, "five shared chunks once, the last token of the prompt by each"
    assert bench.scheduler.memory.pool.cached_pages == 40 // 4


@pytest.mark.parametrize("depth", [2, 3])
def test_a_chunk_in_flight_is_awaited_and_not_computed_twice(depth: int) -> None:
    bench = Bench(make_limits(max_slots=4, pipeline_depth=depth))
    prompt = prompt_of(1, 41)
    for i in range(4):
        bench.add(make_request(str(i), prompt, seed=i))
    bench.run()
    chunks = [run.start for b in bench.engine.batches for run in b.runs if run.kind is RunKind.PREFILL]
    assert sorted(chunks) == [0, 8, 16, 24, 32, *[40] * 4]


def test_awaited_chunk_whose_owner_is_cancelled() -> None:
    bench = Bench(make_limits(pipeline_depth=2, max_slots=2))
    prompt = prompt_of(1, 41)
    bench.add(make_request("owner", prompt))
    request = make_request("heir", prompt, seed=5)
    heir = bench.add(request)
    bench.submit()
    bench.submit()
    bench.scheduler.cancel("owner")
    bench.run()
    assert heir.tokens == bench.alone(request)
    assert heir.finish.usage.cached_tokens == 16, "what the owner computed before it left"


def test_last_chunk_waits_for_nobody() -> None:
    """Its logits are needed, so another's copy of it would not help."""
    bench = Bench(make_limits(pipeline_depth=3, max_slots=2))
    for name in ("a", "b"):
        bench.add(make_request(name, prompt_of(1, 16)))
    while bench.submit() is not None:
        pass
    assert [pending.batch.runs[0].start for pending in bench.engine.pending] == [0, 8]
    bench.commit()
    batch = bench.submit()
    assert batch is not None
    assert (batch.runs[0].slot, batch.runs[0].start) == (1, 8)
    bench.run()


def test_reuse_can_be_switched_off() -> None:
    prompt = prompt_of(1, 40)
    bench = Bench(make_limits(), SchedulerConfig(prefix_reuse="off"))
    for name in ("a", "b"):
        assert serve(bench, name, prompt).finish.usage.cached_tokens == 0
    assert bench.scheduler.memory.pool.cached_pages == 0
    assert bench.scheduler.snapshot.prefix_query_tokens_total == 0

    bench = Bench(make_limits())
    private = bench.add(make_request("private", prompt, reuse_prefix=False))
    bench.run()
    assert private.finish.usage.cached_tokens == 0
    assert bench.scheduler.memory.pool.cached_pages == 0, "a private prompt is not published either"


def test_least_recently_used_prompt_goes_first() -> None:
    bench = Bench(make_limits(total_pages=10, context_tokens=40))
    first, second, third = (prompt_of(i, 17) for i in range(3))
    serve(bench, "1", first)
    serve(bench, "2", second)
    assert serve(bench, "1 again", first).finish.usage.cached_tokens == 16
    serve(bench, "3", third)  # needs the pages of one of them
    assert serve(bench, "1 once more", first).finish.usage.cached_tokens == 16
    assert serve(bench, "2 again", second).finish.usage.cached_tokens < 16


@pytest.mark.parametrize("checkpoints", [0, 2])
def test_full_cache_three_times_over(checkpoints: int) -> None:
    """Case K7: distinct prompts to three times the pool, then the first again; right answers all along."""
    bench = Bench(make_limits(total_pages=16, context_tokens=60, state_checkpoints=checkpoints))
    prompts = [prompt_of(i, 30) for i in range(6)]
    for round_trip in range(2):
        for i, prompt in enumerate(prompts):
            serve(bench, f"{round_trip} {i}", prompt)


def test_checkpoint_and_pages_leave_together() -> None:
    """The bench checks after every move that each number belongs to one published chunk."""
    bench = Bench(make_limits(total_pages=14, context_tokens=40, state_checkpoints=3))
    for i in range(8):
        serve(bench, str(i), prompt_of(i, 17))
    assert 1 <= len(bench.checkpointed()) <= 3


def test_one_checkpoint_follows_the_conversation() -> None:
    """The last chunk boundary may displace an older checkpoint; the ones before it may not."""
    bench = Bench(make_limits(total_pages=60, context_tokens=120, state_checkpoints=1))
    prompt = prompt_of(1, 36)
    serve(bench, "1", prompt)
    assert serve(bench, "2", (*prompt, *prompt_of(2, 20))).finish.usage.cached_tokens == 32
    assert serve(bench, "3", (*prompt, *prompt_of(2, 30))).finish.usage.cached_tokens == 56


def test_branching_prompts_get_a_checkpoint_where_they_part() -> None:
    """A system prompt shared by many conversations is worth one of two checkpoints."""
    bench = Bench(make_limits(total_pages=200, context_tokens=120, state_checkpoints=2))
    system = prompt_of(1, 40)
    hits = []
    for i in range(4):
        sink = serve(bench, str(i), (*system, *[i] * 20))
        hits.append(sink.finish.usage.cached_tokens)
    assert hits[0] == 0
    assert hits[2:] == [40, 40], "the second one showed where the prompts part"


def test_fault_of_a_sequence_takes_its_pages_out_of_the_index() -> None:
    bench = Bench(make_limits(), faulty_seeds=frozenset({13}))
    prompt = prompt_of(1, 33)
    broken = bench.add(make_request("broken", prompt, seed=13))
    bench.run()
    assert broken.finish.reason is FinishReason.ERROR
    assert bench.scheduler.memory.pool.cached_pages == 0
    assert serve(bench, "after", prompt).finish.usage.cached_tokens == 0


def test_fault_while_another_uses_the_same_prefix() -> None:
    for checkpoints in (0, 4):
        bench = Bench(make_limits(state_checkpoints=checkpoints), faulty_seeds=frozenset({13}))
        prompt = prompt_of(1, 33)
        serve(bench, "first", prompt)
        broken = bench.add(make_request("broken", (*prompt, 5), seed=13))
        request = make_request("healthy", (*prompt, *prompt_of(2, 30)), max_tokens=10)
        healthy = bench.add(request)
        bench.run()
        assert broken.finish.reason is FinishReason.ERROR
        assert healthy.tokens == bench.alone(request)


@pytest.mark.parametrize("start", [0, 8, 16])
@pytest.mark.parametrize("checkpoints", [0, 4])
def test_nothing_behind_a_faulty_chunk_is_shared(start: int, checkpoints: int) -> None:
    """The chunk after it is in flight already, and comes back without a complaint of its own."""
    bench = Bench(make_limits(pipeline_depth=3, state_checkpoints=checkpoints), faulty_seeds=frozenset({13}))
    bench.engine.faulty_start = start
    prompt = prompt_of(1, 41)
    broken = bench.add(make_request("broken", prompt, seed=13))
    request = make_request("heir", prompt)
    heir = bench.add(request)
    bench.run()
    assert broken.finish.reason is FinishReason.ERROR
    assert heir.tokens == bench.alone(request)
    later = make_request("later", prompt[8:])
    sink = bench.add(later)
    bench.run()
    assert sink.tokens == bench.alone(later)
    assert sink.finish.usage.cached_tokens == 0


def test_pages_in_use_stay_in_the_index() -> None:
    """However long ago the running sequence touched its prompt, idle prompts go before it."""
    bench = Bench(make_limits(total_pages=30, context_tokens=90, max_slots=2))
    prompt = prompt_of(1, 33)
    bench.add(make_request("running", prompt, max_tokens=50))
    for i in range(2, 7):
        bench.step()
        bench.add(make_request(str(i), prompt_of(i, 25), max_tokens=1))
        for _ in range(5):
            bench.step()
    sink = bench.add(make_request("same", prompt))
    bench.run()
    assert sink.finish.usage.cached_tokens == 32


def test_prompt_sent_again_displaces_no_other_checkpoint() -> None:
    bench = Bench(make_limits(total_pages=100, state_checkpoints=2))
    first, second = prompt_of(1, 8), prompt_of(2, 8)
    serve(bench, "1", first)
    serve(bench, "2", second)
    for i in range(3):
        serve(bench, f"1 again {i}", first)
    longer = (*second, 1, 2, 3)
    assert serve(bench, "2 goes on", longer).finish.usage.cached_tokens == 8
