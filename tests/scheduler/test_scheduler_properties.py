"""Whatever arrives, is cancelled, preempted or shared: every sequence's output is that of running alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from contract_engine import VOCABULARY
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from scheduling import Bench, RecordingSink, make_limits, make_request, prompt_of

from tandem.core.batch import EngineLimits
from tandem.core.errors import ContextLengthError, QueueFullError
from tandem.core.requests import FinishReason, GenerationRequest, TokenOutput
from tandem.scheduler.config import SchedulerConfig


@dataclass(frozen=True)
class Arrival:
    text: int
    shared: int
    own: int
    """The prompt: ``shared`` tokens of the family ``text``, then ``own`` tokens of its own."""
    max_tokens: int
    stops: frozenset[int]
    sink_stop: int | None
    reuse_prefix: bool


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class Move:
    submits: int
    commits: int


arrivals = st.builds(
    Arrival,
    text=st.integers(0, 1),
    shared=st.integers(0, 40).map(lambda length: min(length, 30)),
    own=st.integers(0, 9),
    max_tokens=st.integers(1, 40),
    stops=st.frozensets(st.integers(0, 2 * VOCABULARY), max_size=1),
    sink_stop=st.none() | st.integers(0, 2 * VOCABULARY),
    reuse_prefix=st.sampled_from([True, True, True, False]),
)
moves = st.builds(Move, submits=st.integers(0, 3), commits=st.integers(0, 3))
events = st.lists(
    st.one_of(arrivals, arrivals, arrivals, moves, moves, moves, st.builds(Cancel, st.integers(0, 30))),
    min_size=12,
    max_size=40,
)


@st.composite
def engine_limits(draw: st.DrawFn) -> EngineLimits:
    page_tokens = draw(st.sampled_from([1, 2, 4]))
    return make_limits(
        page_tokens=page_tokens,
        chunk_tokens=page_tokens * draw(st.integers(1, 3)),
        total_pages=draw(st.integers(5, 14)) * 4 // page_tokens,
        max_slots=draw(st.integers(1, 5)),
        max_step_rows=draw(st.sampled_from([1, 2, 5, 16, 40])),
        context_tokens=draw(st.integers(20, 50)),
        pipeline_depth=draw(st.integers(1, 3)),
        state_checkpoints=draw(st.sampled_from([0, 0, 1, 2, 5])),
    )


configs = st.builds(
    SchedulerConfig,
    max_waiting=st.sampled_from([1, 3, 50]),
    max_prefill_chunks_per_step=st.integers(1, 2),
    prefix_reuse=st.sampled_from(["exact", "exact", "exact", "off"]),
    loop_guard_tokens=st.just(0),
)


def request_of(number: int, arrival: Arrival) -> GenerationRequest:
    own = tuple((number * 5 + i) % 19 for i in range(arrival.own))
    return make_request(
        str(number),
        (*prompt_of(arrival.text, arrival.shared), *own) or (number % 19,),
        max_tokens=arrival.max_tokens,
        seed=number,
        stops=arrival.stops,
        reuse_prefix=arrival.reuse_prefix,
    )


def stopping_sink(sink_stop: int | None) -> RecordingSink:
    def on_each(output: TokenOutput) -> FinishReason | None:
        return FinishReason.STOP if output.token_id == sink_stop else None

    return RecordingSink(on_each)


def expected_tokens(bench: Bench, request: GenerationRequest, sink_stop: int | None) -> list[int]:
    tokens = bench.alone(request)
    return tokens[: tokens.index(sink_stop) + 1] if sink_stop in tokens else tokens


def check_script(
    limits: EngineLimits, config: SchedulerConfig, eager: bool, script: list[Arrival | Cancel | Move]
) -> Bench:
    """Play the script and let everything end; check every output, every count, every page."""
    bench = Bench(limits, config, eager=eager)
    taken: list[tuple[GenerationRequest, Arrival, RecordingSink]] = []
    cancelled: set[int] = set()
    for number, item in enumerate(script):
        match item:
            case Arrival():
                request = request_of(number, item)
                try:
                    sink = bench.add(request, stopping_sink(item.sink_stop))
                except ContextLengthError:
                    assert len(request.prompt_tokens) >= bench.context_tokens
                except QueueFullError:
                    assert len(bench.scheduler.queue) >= config.max_waiting
                else:
                    taken.append((request, item, sink))
            case Cancel(which) if taken:
                which %= len(taken)
                bench.scheduler.cancel(taken[which][0].request_id)
                bench.check()
                cancelled.add(which)
            case Move(submits, commits):
                for _ in range(submits):
                    bench.submit()
                for _ in range(commits):
                    bench.commit()
    bench.run()

    for index, (request, arrival, sink) in enumerate(taken):
        expected = expected_tokens(bench, request, arrival.sink_stop)
        finish = sink.finish
        assert finish.usage.completion_tokens == len(sink.tokens) == finish.timings.predicted_n
        if finish.reason is FinishReason.CANCELLED:
            assert index in cancelled
            assert sink.tokens == expected[: len(sink.tokens)]
            continue
        assert sink.tokens == expected
        last = sink.outputs[-1]
        stopped = last.is_stop_token or last.token_id == arrival.sink_stop
        assert finish.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert finish.timings.prompt_n + finish.timings.cached_n == len(request.prompt_tokens)
        assert finish.timings.prompt_n >= 1
        assert finish.usage.cached_tokens % limits.chunk_tokens == 0

    stats = bench.scheduler.snapshot
    assert stats.generated_tokens_total == sum(len(sink.tokens) for _, _, sink in taken)
    assert sum(stats.finished_total.values()) == len(taken)
    assert stats.running == stats.waiting == stats.live_pages == 0
    return bench


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(limits=engine_limits(), config=configs, eager=st.booleans(), script=events)
def test_every_output_is_that_of_running_alone(
    limits: EngineLimits, config: SchedulerConfig, eager: bool, script: list[Arrival | Cancel | Move]
) -> None:
    bench = check_script(limits, config, eager, script)
    stats = bench.scheduler.snapshot
    event(f"preempted: {stats.preemptions_total > 0}")
    event(f"reused: {stats.prefix_hit_tokens_total > 0}")
    event(
        f"restored: {any(run.restore_checkpoint is not None for b in bench.engine.batches for run in b.runs)}"
    )


def random_script(rng: random.Random) -> list[Arrival | Cancel | Move]:
    script: list[Arrival | Cancel | Move] = []
    for _ in range(rng.randint(10, 60)):
        kind = rng.random()
        if kind < 0.4:
            script.append(
                Arrival(
                    text=rng.randint(0, 1),
                    shared=min(rng.randint(0, 40), 30),
                    own=rng.randint(0, 9),
                    max_tokens=rng.randint(1, 40),
                    stops=frozenset([rng.randint(0, 2 * VOCABULARY)]),
                    sink_stop=rng.choice([None, rng.randint(0, 2 * VOCABULARY)]),
                    reuse_prefix=rng.random() < 0.85,
                )
            )
        elif kind < 0.9:
            script.append(Move(rng.randint(0, 3), rng.randint(0, 3)))
        else:
            script.append(Cancel(rng.randint(0, 30)))
    return script


@pytest.mark.parametrize("block", range(4))
def test_crowded_scenarios(block: int) -> None:
    """Denser than what hypothesis draws: a third of these preempt, half reuse, a third restore state."""
    preempted = reused = 0
    for number in range(60 * block, 60 * (block + 1)):
        rng = random.Random(number)
        page_tokens = rng.choice([1, 2, 4])
        limits = make_limits(
            page_tokens=page_tokens,
            chunk_tokens=page_tokens * rng.randint(1, 3),
            total_pages=rng.randint(5, 16) * 4 // page_tokens,
            max_slots=rng.randint(1, 6),
            max_step_rows=rng.choice([1, 2, 5, 16, 40]),
            context_tokens=rng.randint(20, 60),
            pipeline_depth=rng.randint(1, 4),
            state_checkpoints=rng.choice([0, 0, 1, 2, 5, 9]),
        )
        config = SchedulerConfig(max_waiting=50, max_prefill_chunks_per_step=rng.randint(1, 2))
        bench = check_script(limits, config, rng.random() < 0.5, random_script(rng))
        preempted += bench.scheduler.snapshot.preemptions_total > 0
        reused += bench.scheduler.snapshot.prefix_hit_tokens_total > 0
    assert preempted >= 10
    assert reused >= 20
