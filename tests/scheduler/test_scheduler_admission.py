"""At the door: what is refused, who waits where, and for how long (cases H5, J4)."""

from __future__ import annotations

import pytest
from scheduling import Bench, RecordingSink, make_limits, make_request, prompt_of

from tandem.core.errors import ContextLengthError, NotReadyError, QueueFullError, RequestError, SettingsError
from tandem.core.requests import FinishReason
from tandem.scheduler.config import SchedulerConfig


def test_queue_limit_serves_first_come_first_served_and_refuses_the_rest() -> None:
    """Case J4: queue 2, concurrency 1, ten at once: three are served in order, seven get 429."""
    bench = Bench(make_limits(max_slots=1), SchedulerConfig(max_waiting=2))
    order: list[str] = []
    refusals: list[QueueFullError] = []
    for i in range(10):
        request = make_request(str(i), prompt_of(i, 5))
        sink = RecordingSink(lambda output, name=str(i): order.append(name))
        try:
            bench.add(request, sink)
        except QueueFullError as error:
            refusals.append(error)
    bench.run()
    assert len(refusals) == 7
    assert {(error.status, error.retry_after_s) for error in refusals} == {(429, 1)}
    assert list(dict.fromkeys(order)) == ["0", "1", "2"]
    assert bench.scheduler.snapshot.finished_total == {"length": 3}
    bench.add(make_request("later", (1,)))


def test_no_queue_means_now_or_not_at_all() -> None:
    bench = Bench(make_limits(max_slots=2), SchedulerConfig(max_waiting=0))
    bench.add(make_request("a", (1,)))
    bench.add(make_request("b", (1,)))
    with pytest.raises(QueueFullError):
        bench.add(make_request("c", (1,)))
    bench.run()
    bench.add(make_request("d", (1,)))


def test_waiting_for_pages_counts_as_waiting() -> None:
    bench = Bench(make_limits(total_pages=10, context_tokens=40, max_slots=4), SchedulerConfig(max_waiting=1))
    bench.add(make_request("big", prompt_of(1, 30), max_tokens=10))
    bench.step()
    waiting = bench.add(make_request("next", prompt_of(2, 30)))
    bench.step()
    with pytest.raises(QueueFullError):
        bench.add(make_request("third", (1,)))
    bench.run()
    assert waiting.finish.reason is FinishReason.LENGTH


def test_waiter_expires_with_the_error_of_a_full_queue() -> None:
    bench = Bench(make_limits(max_slots=1), SchedulerConfig(max_wait_s=10.0))
    running = bench.add(make_request("running", (1,), max_tokens=50))
    bench.step()
    early = bench.add(make_request("early", (2,)))
    bench.clock.now += 5
    late = bench.add(make_request("late", (3,)))
    expiry = bench.clock.now + 5
    assert bench.scheduler.queue.next_expiry() == pytest.approx(expiry)
    bench.clock.now = expiry
    bench.scheduler.expire()
    assert early.finish.reason is FinishReason.ERROR
    assert isinstance(early.finish.error, QueueFullError)
    assert "10 seconds" in str(early.finish.error)
    assert early.finish.timings.queue_ms == pytest.approx(10e3)
    assert early.finish.usage.completion_tokens == 0
    assert not late.finishes
    assert bench.scheduler.queue.position("late") == 0
    bench.scheduler.cancel("running")
    bench.run()
    assert running.finish.reason is FinishReason.CANCELLED
    assert late.finish.reason is FinishReason.LENGTH


def test_waiters_need_not_expire() -> None:
    bench = Bench(make_limits(max_slots=1), SchedulerConfig(max_wait_s=None))
    bench.add(make_request("a", (1,)))
    bench.add(make_request("b", (1,)))
    assert bench.scheduler.queue.next_expiry() is None
    bench.clock.now = 1e9
    bench.scheduler.expire()
    assert bench.scheduler.queue.position("b") == 1


def test_position_is_visible() -> None:
    bench = Bench(make_limits(max_slots=1))
    for name in "abcd":
        bench.add(make_request(name, (1,)))
    bench.step()
    assert [bench.scheduler.queue.position(name) for name in "abcd"] == [None, 0, 1, 2]
    bench.scheduler.cancel("b")
    assert [bench.scheduler.queue.position(name) for name in "abcd"] == [None, None, 0, 1]
    assert bench.scheduler.snapshot.waiting == 2


def test_retry_after_follows_the_pace_of_the_server() -> None:
    bench = Bench(make_limits(max_slots=2, context_tokens=90), SchedulerConfig(max_waiting=0))
    bench.add(make_request("slow", (1,), max_tokens=41))
    bench.run()  # one second a step: about 40 s a request, two at a time
    bench.add(make_request("a", (1,)))
    bench.add(make_request("b", (1,)))
    with pytest.raises(QueueFullError) as refusal:
        bench.add(make_request("c", (1,)))
    assert refusal.value.retry_after_s == 20


@pytest.mark.parametrize(
    ("length", "fits"), [(97, True), (98, True), (99, True), (100, False), (101, False), (2_000_000, False)]
)
def test_prompt_must_leave_room_for_one_token(length: int, fits: bool) -> None:
    """Cases H4, H5: the largest prompt is the context less one; more is refused before it costs anything."""
    bench = Bench(make_limits(context_tokens=100))
    request = make_request("big", (1,) * length, max_tokens=1)
    if not fits:
        with pytest.raises(ContextLengthError, match=r"100 tokens.*asked for \d+ prompt tokens") as refusal:
            bench.add(request)
        assert refusal.value.code == "context_length_exceeded"
        assert bench.scheduler.idle
        assert bench.submit() is None
    after = bench.add(request if fits else make_request("after", (1, 2), max_tokens=1))
    bench.run()
    assert after.finish.reason is FinishReason.LENGTH
    assert len(after.tokens) == 1


def test_twenty_oversized_prompts_leave_no_trace() -> None:
    """Case H5."""
    bench = Bench(make_limits())
    prompt = (1,) * 2_000_000
    for i in range(20):
        with pytest.raises(ContextLengthError):
            bench.add(make_request(str(i), prompt))
    assert bench.scheduler.idle
    assert len(bench.add(make_request("after", (1, 2, 3))).tokens) == 0
    bench.run()


def test_pool_smaller_than_the_context_is_the_limit() -> None:
    """A request that could never run is refused at once; one that fits ends where the pool ends."""
    bench = Bench(make_limits(total_pages=5, page_tokens=4, context_tokens=100))
    with pytest.raises(ContextLengthError, match="maximum context length is 20 tokens"):
        bench.add(make_request("never", prompt_of(1, 20)))
    request = make_request("fits", prompt_of(1, 19), max_tokens=1)
    endless = make_request("endless", prompt_of(2, 5), max_tokens=1000)
    sinks = [bench.add(request), bench.add(endless)]
    bench.run()
    assert sinks[0].tokens == bench.alone(request)
    assert sinks[1].tokens == bench.alone(endless)
    assert len(sinks[1].tokens) == 15
    assert sinks[1].finish.reason is FinishReason.LENGTH


def test_request_ids_are_unique_while_they_live() -> None:
    bench = Bench(make_limits())
    bench.add(make_request("same", (1,)))
    with pytest.raises(RequestError, match="in use"):
        bench.add(make_request("same", (1,)))
    bench.run()
    bench.add(make_request("same", (1,)))


def test_senseless_requests_are_refused() -> None:
    bench = Bench(make_limits())
    with pytest.raises(RequestError, match="no tokens"):
        bench.add(make_request("empty", ()))
    with pytest.raises(RequestError, match="max_tokens"):
        bench.add(make_request("none", (1,), max_tokens=0))


def test_closed_queue_refuses_and_ends_those_that_have_not_started() -> None:
    bench = Bench(make_limits(max_slots=1))
    running = make_request("running", (1,))
    sinks = [bench.add(running), bench.add(make_request("waiting", (1,)))]
    bench.step()
    bench.scheduler.close("closing time", NotReadyError("closing time"))
    assert isinstance(sinks[1].finish.error, NotReadyError)
    with pytest.raises(NotReadyError, match="closing time"):
        bench.add(make_request("late", (1,)))
    bench.run()
    assert sinks[0].tokens == bench.alone(running)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_waiting", -1),
        ("max_wait_s", 0),
        ("max_prefill_chunks_per_step", 0),
        ("prefix_reuse", "perhaps"),
        ("loop_guard_tokens", 1),
        ("stall_timeout_s", 0),
        ("shutdown_grace_s", -1),
    ],
)
def test_config_refuses_senseless_values(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        SchedulerConfig(**{field: value})  # type: ignore[arg-type]
