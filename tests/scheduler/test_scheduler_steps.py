"""Steps: fairness, pipelining, preemption, cancellation, and how sequences end (cases J1, K7, L6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling import Bench, RecordingSink, make_limits, make_request, prompt_of

from tandem.core.batch import Batch, RunKind, SequenceSpec, StepResult
from tandem.core.errors import EngineFault, RequestError
from tandem.core.requests import FinishReason, TokenOutput
from tandem.scheduler.config import SchedulerConfig


def slots_of(batch: Batch, kind: RunKind) -> set[int]:
    return {run.slot for run in batch.runs if run.kind is kind}


def test_long_prompt_does_not_stall_running_streams() -> None:
    bench = Bench(make_limits(total_pages=200, context_tokens=400))
    streams = [bench.add(make_request(str(i), prompt_of(i, 3), max_tokens=60)) for i in range(3)]
    while not all(sink.tokens for sink in streams):
        bench.step()
    long = make_request("long", prompt_of(5, 300), max_tokens=2)
    long_sink = bench.add(long)
    while not long_sink.tokens:
        before = [len(sink.tokens) for sink in streams]
        batch = bench.step()
        assert batch is not None
        assert len(slots_of(batch, RunKind.ROWS)) == 3, "every stream has its row in every step"
        assert len(slots_of(batch, RunKind.PREFILL)) == 1, "and the prompt its chunk"
        assert [len(sink.tokens) for sink in streams] == [count + 1 for count in before]
    bench.run()


def test_short_request_overtakes_a_long_prefill() -> None:
    bench = Bench(make_limits(total_pages=200, context_tokens=400))
    bench.add(make_request("long", prompt_of(5, 300)))
    bench.step()
    short = bench.add(make_request("short", prompt_of(1, 5)))
    bench.step()
    bench.step()
    assert short.tokens, "its only chunk came right after one of the long prompt's"
    bench.run()


def test_prefilling_sequences_take_turns() -> None:
    bench = Bench(make_limits(total_pages=200, context_tokens=100))
    for i in range(3):
        bench.add(make_request(str(i), prompt_of(i, 40)))
    turns = []
    for _ in range(9):
        batch = bench.step()
        assert batch is not None
        turns.extend(slots_of(batch, RunKind.PREFILL))
    assert turns == [0, 1, 2] * 3
    bench.run()


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_chunks_per_step(chunks: int) -> None:
    bench = Bench(make_limits(total_pages=200), SchedulerConfig(max_prefill_chunks_per_step=chunks))
    for i in range(4):
        bench.add(make_request(str(i), prompt_of(i, 20)))
    batch = bench.step()
    assert batch is not None
    assert len(batch.runs) == min(chunks, 4)
    bench.run()


def test_more_streams_than_rows_take_turns() -> None:
    bench = Bench(make_limits(max_slots=5, max_step_rows=2))
    requests = [make_request(str(i), prompt_of(i, 3), max_tokens=40) for i in range(5)]
    sinks = [bench.add(request) for request in requests]
    while not all(sink.tokens for sink in sinks):
        bench.step()
    before = [len(sink.tokens) for sink in sinks]
    for _ in range(10):
        bench.step()
    assert [len(sink.tokens) for sink in sinks] == [count + 4 for count in before]
    bench.run()
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.tokens == bench.alone(request)


@pytest.mark.parametrize("depth", [2, 3])
def test_pipeline_is_kept_full(depth: int) -> None:
    """Decoding sequences are spread over the batches in flight; chunk i+1 follows chunk i."""
    bench = Bench(make_limits(pipeline_depth=depth, max_slots=6, total_pages=200))
    for i in range(6):
        bench.add(make_request(str(i), prompt_of(i, 3), max_tokens=30))
    for _ in range(12):
        bench.step()
    while bench.commit():
        pass
    while bench.submit() is not None:
        pass
    in_flight = [pending.batch for pending in bench.engine.pending]
    assert len(in_flight) == depth
    assert all(len(slots_of(batch, RunKind.ROWS)) == 6 // depth for batch in in_flight)
    bench.run()

    bench.add(make_request("long", prompt_of(9, 90)))
    while bench.submit() is not None:
        pass
    starts = [pending.batch.runs[0].start for pending in bench.engine.pending]
    assert starts == [8 * i for i in range(depth)]
    bench.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("checkpoints", [0, 3])
def test_preempted_sequence_resumes_with_the_same_bits(depth: int, checkpoints: int) -> None:
    limits = make_limits(total_pages=20, context_tokens=70, max_slots=2, pipeline_depth=depth)
    bench = Bench(replace(limits, state_checkpoints=checkpoints, max_step_rows=40))
    requests = [make_request(name, prompt_of(i, 9), max_tokens=60) for i, name in enumerate("ab")]
    sinks = [bench.add(request) for request in requests]
    bench.run()
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.tokens == bench.alone(request)
        assert sink.finish.timings.prompt_n + sink.finish.timings.cached_n == 9
    assert bench.scheduler.snapshot.preemptions_total >= 1
    replayed = [
        run
        for batch in bench.engine.batches
        for run in batch.runs
        if run.kind is RunKind.ROWS and len(run.tokens) > 1
    ]
    assert max(len(run.tokens) for run in replayed) == 16, "generated tokens come back 16 at a time"
    assert bench.scheduler.snapshot.prompt_tokens_total == 18, "a resume counts no prompt twice"


def test_preempted_sequence_resumes_before_those_that_wait() -> None:
    bench = Bench(make_limits(total_pages=12, context_tokens=44, max_slots=2))
    for i, name in enumerate(("oldest", "preempted", "waiting")):
        bench.add(make_request(name, prompt_of(i, 9), max_tokens=34))
    while not bench.scheduler.snapshot.preemptions_total:
        bench.step()
    positions = [bench.scheduler.queue.position(name) for name in ("oldest", "preempted", "waiting")]
    assert positions == [None, 0, 1]
    bench.clock.now += 1e6
    bench.scheduler.expire()
    assert bench.scheduler.queue.position("preempted") == 0, "who has started never expires"
    assert bench.scheduler.queue.position("waiting") is None
    bench.run()


def test_waiter_gets_the_pages_of_one_that_ends_while_others_run() -> None:
    bench = Bench(make_limits(total_pages=18, context_tokens=70, max_slots=4))
    bench.add(make_request("short", prompt_of(1, 30), max_tokens=10))
    bench.add(make_request("long", prompt_of(2, 9), max_tokens=30))
    waiter = bench.add(make_request("waiter", prompt_of(3, 20)))
    while bench.scheduler.snapshot.finished_total == {}:
        bench.step()
        assert not waiter.tokens
    bench.submit()
    assert bench.scheduler.queue.position("waiter") is None
    assert bench.scheduler.snapshot.running == 2
    bench.run()


def test_oldest_sequence_is_never_preempted() -> None:
    bench = Bench(make_limits(total_pages=12, context_tokens=44, max_slots=4))
    oldest = make_request("oldest", prompt_of(0, 9), max_tokens=34)
    sink = bench.add(oldest)
    for i in range(1, 6):
        bench.add(make_request(str(i), prompt_of(i, 9), max_tokens=34))
    while not sink.finishes:
        bench.step()
    assert sink.tokens == bench.alone(oldest)
    prefills = [r for b in bench.engine.batches for r in b.runs if r.tokens == oldest.prompt_tokens[:8]]
    assert len(prefills) == 1
    bench.run()


def test_two_requests_that_together_exceed_the_pool() -> None:
    """Case K7: one waits, both are answered, and the steps are bounded."""
    bench = Bench(make_limits(total_pages=12, context_tokens=48))
    requests = [make_request(name, prompt_of(i, 40), max_tokens=8) for i, name in enumerate("ab")]
    sinks = [bench.add(request) for request in requests]
    bench.run(max_steps=60)
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.tokens == bench.alone(request)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_cancel_frees_everything_when_its_batch_returns(depth: int) -> None:
    """Case J1, fifty times: no slot, no page is left behind."""
    bench = Bench(make_limits(pipeline_depth=depth), SchedulerConfig(prefix_reuse="off"))
    for i in range(50):
        sink = bench.add(make_request("ghost", prompt_of(i, 20), max_tokens=60))
        for _ in range(i % 9):
            bench.step()
        bench.submit()
        bench.scheduler.cancel("ghost")
        assert sink.finish.reason is FinishReason.CANCELLED
        bench.scheduler.cancel("ghost")
        for _ in range(depth):
            bench.commit()
        stats = bench.scheduler.snapshot
        assert stats.running == stats.live_pages == 0
        assert stats.free_pages == stats.total_pages
        assert bench.submit() is None
    request = make_request("next", prompt_of(1, 20))
    sink = bench.add(request)
    bench.run()
    assert sink.tokens == bench.alone(request)


def test_unknown_ids_are_ignored() -> None:
    bench = Bench(make_limits())
    bench.scheduler.cancel("nobody")
    assert bench.scheduler.idle


def test_id_of_a_cancelled_request_can_be_used_again_at_once() -> None:
    """Case J3: the next turn comes while the old one's last batch is still in flight."""
    bench = Bench(make_limits(pipeline_depth=2))
    old = bench.add(make_request("turn", prompt_of(1, 30)))
    bench.submit()
    bench.scheduler.cancel("turn")
    request = make_request("turn", (*prompt_of(1, 12), 20, 20))
    new = bench.add(request)
    bench.run()
    assert old.finish.reason is FinishReason.CANCELLED
    assert old.tokens == []
    assert new.tokens == bench.alone(request)
    assert new.finish.usage.prompt_tokens == 14


def test_finish_reasons_and_counts() -> None:
    bench = Bench(make_limits())
    request = make_request("free", prompt_of(1, 10), max_tokens=12)
    output = bench.alone(request)
    third = next(i for i in range(2, 12) if output.index(output[i]) == i)
    assert 0 < third < 11

    def sink_stop(token: TokenOutput) -> FinishReason | None:
        return FinishReason.STOP if token.token_id == output[third] else None

    length = bench.add(request)
    stop_id = bench.add(
        make_request("id", request.prompt_tokens, max_tokens=12, stops=frozenset({output[third]}))
    )
    stop_text = bench.add(
        make_request("text", request.prompt_tokens, max_tokens=12), RecordingSink(sink_stop)
    )
    bench.run()
    assert length.finish.reason is FinishReason.LENGTH
    assert length.finish.usage.completion_tokens == 12
    for sink in (stop_id, stop_text):
        assert sink.finish.reason is FinishReason.STOP
        assert sink.finish.usage.completion_tokens == third + 1, "the end token counts"
    assert [o.is_stop_token for o in stop_id.outputs] == [False] * third + [True]
    assert not any(o.is_stop_token for o in stop_text.outputs)
    assert bench.scheduler.snapshot.finished_total == {"length": 1, "stop": 2}


def test_timings_of_one_request() -> None:
    bench = Bench(make_limits(max_slots=1))
    bench.add(make_request("before", (1,), max_tokens=3))
    sink = bench.add(make_request("timed", prompt_of(1, 20), max_tokens=5))
    bench.run()
    timings = sink.finish.timings
    # The clock moves one second a step, after the tokens are out; three chunks, then four rows.
    assert timings.queue_ms == 3000
    assert timings.prompt_ms == 2000
    assert timings.predicted_ms == 4000
    assert (timings.prompt_n, timings.cached_n, timings.predicted_n) == (20, 0, 5)


def test_slot_fault_ends_one_sequence_and_harms_no_other() -> None:
    bench = Bench(make_limits(), faulty_seeds=frozenset({3}))
    requests = [make_request(str(i), prompt_of(i, 10), seed=i) for i in range(4)]
    sinks = [bench.add(request) for request in requests]
    bench.run()
    assert sinks[3].finish.reason is FinishReason.ERROR
    error = sinks[3].finish.error
    assert isinstance(error, RequestError)
    assert error.status == 500
    assert "not finite" in str(error)
    for request, sink in zip(requests[:3], sinks[:3], strict=True):
        assert sink.tokens == bench.alone(request)


@pytest.mark.parametrize("failure", [ValueError("cannot decode"), RequestError("bad grammar", status=500)])
def test_sink_that_raises_ends_its_own_sequence(failure: Exception) -> None:
    def fail(output: TokenOutput) -> FinishReason | None:
        raise failure

    bench = Bench(make_limits())
    broken = bench.add(make_request("broken", prompt_of(1, 10)), RecordingSink(fail))
    request = make_request("healthy", prompt_of(2, 10))
    healthy = bench.add(request)
    bench.run()
    assert broken.finish.reason is FinishReason.ERROR
    assert isinstance(broken.finish.error, RequestError)
    assert str(failure) in str(broken.finish.error)
    assert len(broken.tokens) == 1
    assert healthy.tokens == bench.alone(request)


def test_sink_that_raises_at_the_end_harms_nobody() -> None:
    class Grumbler(RecordingSink):
        def on_finish(self, finish: object) -> None:
            raise RuntimeError("no")

    bench = Bench(make_limits())
    bench.add(make_request("grumbler", (1,)), Grumbler())
    request = make_request("healthy", prompt_of(2, 10))
    healthy = bench.add(request)
    bench.run()
    assert healthy.tokens == bench.alone(request)


def test_request_the_engine_cannot_open_ends_alone() -> None:
    bench = Bench(make_limits())

    def refuse(slot: int, spec: SequenceSpec) -> None:
        if spec.prompt_length == 3:
            raise RequestError("logit_bias names token 99999", param="logit_bias")
        opened(slot, spec)

    opened = bench.engine.open_sequence
    bench.engine.open_sequence = refuse  # type: ignore[method-assign]
    bad = bench.add(make_request("bad", (1, 2, 3)))
    request = make_request("good", (1, 2))
    good = bench.add(request)
    bench.run()
    assert "logit_bias" in str(bad.finish.error)
    assert good.tokens == bench.alone(request)


def test_loop_guard_ends_a_sequence_that_repeats_one_token() -> None:
    """Case L6."""
    bench = Bench(make_limits(), SchedulerConfig(loop_guard_tokens=20))
    bench.engine.constant_token = 0
    sink = bench.add(make_request("stuck", prompt_of(1, 5), max_tokens=80))
    short = bench.add(make_request("short", prompt_of(1, 5), max_tokens=19))
    wanted = bench.add(replace(make_request("wanted", prompt_of(1, 5), max_tokens=80), guard_loops=False))
    bench.run()
    assert sink.finish.reason is FinishReason.ERROR
    assert len(sink.tokens) == 20
    assert isinstance(sink.finish.error, RequestError)
    assert sink.finish.error.code == "output_loop"
    assert short.finish.reason is FinishReason.LENGTH
    assert (wanted.finish.reason, len(wanted.tokens)) == (FinishReason.LENGTH, 80)


def test_loop_guard_counts_only_equal_tokens_and_can_be_off() -> None:
    bench = Bench(make_limits(), SchedulerConfig(loop_guard_tokens=2))
    request = make_request("varied", prompt_of(1, 5), max_tokens=30)
    output = bench.alone(request)
    doubled = next((i for i in range(1, 30) if output[i] == output[i - 1]), None)
    sink = bench.add(request)
    bench.run()
    assert len(sink.tokens) == (30 if doubled is None else doubled + 1)

    bench = Bench(make_limits(), SchedulerConfig(loop_guard_tokens=0))
    bench.engine.constant_token = 0
    sink = bench.add(make_request("stuck", prompt_of(1, 5), max_tokens=80))
    bench.run()
    assert sink.finish.reason is FinishReason.LENGTH


def test_result_of_another_step_is_a_fault() -> None:
    bench = Bench(make_limits())
    bench.add(make_request("a", (1,)))
    bench.submit()
    with pytest.raises(EngineFault, match="7, expected 0"):
        bench.scheduler.commit(StepResult(7, ()))


def test_sample_that_does_not_come_is_a_fault() -> None:
    bench = Bench(make_limits())
    sink = bench.add(make_request("a", (1,)))
    bench.submit()
    with pytest.raises(EngineFault, match="no token"):
        bench.scheduler.commit(StepResult(0, ()))
    bench.scheduler.abort("broken", EngineFault("broken"))
    assert isinstance(sink.finish.error, EngineFault)
    stats = bench.scheduler.snapshot
    assert stats.running == stats.waiting == stats.live_pages == 0
