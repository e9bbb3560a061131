"""The scheduler's own thread: wake-ups, faults, shutdown, and many callers at once (cases J1, J3, J6)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from contract_engine import alone
from scheduling import make_limits, make_request, prompt_of
from worker_engine import WorkerEngine

from tandem.core.errors import ContextLengthError, EngineFault, NotReadyError, QueueFullError
from tandem.core.protocols import RequestScheduler
from tandem.core.requests import Finish, FinishReason, TokenOutput
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.loop import Scheduler

PATIENCE_S = 20.0


class WaitingSink:
    """Collects on the scheduler's thread; the test waits for the end. Twice the end is an error."""

    def __init__(self, on_each: Callable[[TokenOutput], FinishReason | None] = lambda output: None) -> None:
        self.on_each = on_each
        self.tokens: list[int] = []
        self.finishes: list[Finish] = []
        self.started = threading.Event()
        self.ended = threading.Event()

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        self.tokens.append(output.token_id)
        self.started.set()
        return self.on_each(output)

    def on_finish(self, finish: Finish) -> None:
        self.finishes.append(finish)
        self.ended.set()

    def wait(self) -> Finish:
        assert self.ended.wait(PATIENCE_S), "the request never ended"
        (finish,) = self.finishes
        return finish


Starter = Callable[..., tuple[Scheduler, WorkerEngine]]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Builds started schedulers and shuts them down afterwards."""
    made: list[Scheduler] = []

    def build(config: SchedulerConfig | None = None, **limits: int) -> tuple[Scheduler, WorkerEngine]:
        engine = WorkerEngine(make_limits(**limits))
        scheduler = Scheduler(engine, config)
        scheduler.start()
        made.append(scheduler)
        return scheduler, engine

    yield build
    for scheduler in made:
        scheduler.shutdown(0.0)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def submit(
    scheduler: RequestScheduler, name: str, prompt: tuple[int, ...], max_tokens: int = 5
) -> WaitingSink:
    sink = WaitingSink()
    scheduler.submit(make_request(name, prompt, max_tokens=max_tokens), sink)
    return sink


@pytest.mark.parametrize("depth", [1, 3])
def test_requests_are_served(start: Starter, depth: int) -> None:
    scheduler, engine = start(pipeline_depth=depth)
    requests = [make_request(str(i), prompt_of(i, 5 + 7 * i), seed=i) for i in range(8)]
    sinks = [WaitingSink() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        scheduler.submit(request, sink)
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.wait().reason is FinishReason.LENGTH
        assert sink.tokens == alone(request, recurrent=False, context_tokens=100)
    stats = scheduler.stats()
    assert stats.running == stats.waiting == stats.live_pages == 0
    assert stats.last_step_age_s == 0.0
    assert stats.generated_tokens_total == 40
    assert len(engine.callers) == 1, "the engine hears one thread only"
    assert threading.get_ident() not in engine.callers


def test_figures_are_in_order_when_the_end_is_announced(start: Starter) -> None:
    scheduler, _ = start()
    seen: list[tuple[int, int, int]] = []

    class Reader(WaitingSink):
        def on_finish(self, finish: Finish) -> None:
            stats = scheduler.stats()
            seen.append((stats.running, stats.live_pages, stats.finished_total["length"]))
            super().on_finish(finish)

    sink = Reader()
    scheduler.submit(make_request("a", (1, 2)), sink)
    sink.wait()
    assert seen == [(0, 0, 1)]


def test_idle_thread_sleeps() -> None:
    """No busy waiting, neither without work nor while a step runs: the clock is not even looked at."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return time.monotonic()

    engine = WorkerEngine(make_limits())
    scheduler = Scheduler(engine, SchedulerConfig(), clock)
    scheduler.start()
    try:
        submit(scheduler, "a", (1,)).wait()
        engine.hold()
        submit(scheduler, "b", (1,))
        eventually(lambda: len(engine.inner.batches) > 5)
        time.sleep(0.05)
        before = looks
        time.sleep(0.3)
        assert looks == before
    finally:
        engine.go_on()
        scheduler.shutdown(0.0)


def test_disconnect_fifty_times_while_decoding(start: Starter) -> None:
    """Case J1: no ghost keeps the only slot."""
    scheduler, _ = start(max_slots=1)
    for i in range(50):
        sink = submit(scheduler, str(i), prompt_of(i, 10), max_tokens=80)
        assert sink.started.wait(PATIENCE_S)
        scheduler.cancel(str(i))
        assert sink.wait().reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    eventually(lambda: scheduler.stats().running == 0)
    stats = scheduler.stats()
    assert stats.live_pages == 0
    assert stats.free_pages + stats.cached_pages == stats.total_pages
    assert submit(scheduler, "next", (1, 2)).wait().reason is FinishReason.LENGTH


def test_next_turn_right_after_a_disconnect(start: Starter) -> None:
    """Case J3, ten times: the new request alone defines its context."""
    scheduler, _ = start(pipeline_depth=2)
    for i in range(10):
        old = submit(scheduler, "chat", prompt_of(1, 40), max_tokens=60)
        assert old.started.wait(PATIENCE_S)
        scheduler.cancel("chat")
        old.wait()
        request = make_request("chat", (*prompt_of(1, 30 - i), 20, 21), max_tokens=6)
        new = WaitingSink()
        scheduler.submit(request, new)
        assert new.wait().usage.prompt_tokens == 32 - i
        assert new.tokens == alone(request, recurrent=False, context_tokens=100)


def test_sink_may_cancel_its_own_request(start: Starter) -> None:
    scheduler, _ = start()
    sink = WaitingSink(lambda output: scheduler.cancel("self"))
    scheduler.submit(make_request("self", (1,), max_tokens=80), sink)
    assert sink.wait().reason is FinishReason.CANCELLED


def test_waiters_expire_without_any_other_event(start: Starter) -> None:
    scheduler, engine = start(SchedulerConfig(max_wait_s=0.05), max_slots=1)
    engine.hold()
    running = submit(scheduler, "running", (1,))
    eventually(lambda: scheduler.stats().running == 1)
    waiting = submit(scheduler, "waiting", (2,))
    assert scheduler.queue_position("waiting") == 0
    error = waiting.wait().error
    assert isinstance(error, QueueFullError)
    assert error.retry_after_s
    engine.go_on()
    running.wait()


def test_dead_worker_ends_everybody_and_shows_in_fault(start: Starter) -> None:
    """Case J6: a step that raises."""
    scheduler, engine = start(max_slots=2)
    engine.hold()
    engine.die(RuntimeError("stage 1 lost its card"))
    sinks = [submit(scheduler, str(i), (1, 2)) for i in range(5)]
    engine.go_on()
    for sink in sinks:
        finish = sink.wait()
        assert finish.reason is FinishReason.ERROR
        assert isinstance(finish.error, EngineFault)
        assert "lost its card" in str(finish.error)
    assert "lost its card" in (scheduler.fault() or "")
    with pytest.raises(NotReadyError, match="lost its card"):
        submit(scheduler, "late", (1,))
    stats = scheduler.stats()
    assert stats.running == stats.waiting == stats.live_pages == 0
    scheduler.cancel("0")
    scheduler.shutdown(5.0)
    assert not engine.alive


def test_engine_that_refuses_a_batch_is_a_fault(start: Starter) -> None:
    scheduler, engine = start()
    engine.inner.batches.append(None)  # type: ignore[arg-type]  # its step count no longer agrees
    finish = submit(scheduler, "a", (1,)).wait()
    assert isinstance(finish.error, EngineFault)
    assert scheduler.fault() is not None


@pytest.mark.parametrize("death", [SystemExit(3), KeyboardInterrupt()])
def test_any_death_of_a_worker_is_noticed(start: Starter, death: BaseException) -> None:
    scheduler, engine = start()
    engine.die(death)
    assert isinstance(submit(scheduler, "a", (1,)).wait().error, EngineFault)


def test_stuck_step_is_a_fault(start: Starter) -> None:
    """Case J6: the engine neither ends a step nor fails."""
    scheduler, engine = start(SchedulerConfig(stall_timeout_s=0.2))
    submit(scheduler, "fine", (1,)).wait()
    assert scheduler.fault() is None
    engine.hold()
    stuck = submit(scheduler, "stuck", (1,))
    eventually(lambda: scheduler.stats().last_step_age_s > 0)
    finish = stuck.wait()
    assert isinstance(finish.error, EngineFault)
    assert "engine stuck" in str(finish.error)
    assert "engine stuck" in (scheduler.fault() or "")
    with pytest.raises(NotReadyError, match="stuck"):
        submit(scheduler, "late", (1,))


def test_blocked_thread_shows_in_fault(start: Starter) -> None:
    """Case J6: even the scheduler's own thread may hang; health is asked from another."""
    scheduler, _ = start(SchedulerConfig(stall_timeout_s=0.2))
    release = threading.Event()

    def block(output: TokenOutput) -> None:
        release.wait(PATIENCE_S)

    sink = WaitingSink(block)
    scheduler.submit(make_request("blocked", (1,)), sink)
    eventually(lambda: "engine stuck" in (scheduler.fault() or ""))
    with pytest.raises(NotReadyError):
        submit(scheduler, "late", (1,))
    release.set()
    sink.wait()


def test_shutdown_lets_running_requests_end(start: Starter) -> None:
    scheduler, engine = start(max_slots=1)
    engine.hold()
    running = submit(scheduler, "running", prompt_of(1, 20), max_tokens=50)
    eventually(lambda: scheduler.stats().running == 1)
    waiting = submit(scheduler, "waiting", (2,))
    stopper = threading.Thread(target=scheduler.shutdown, args=(PATIENCE_S,))
    stopper.start()
    assert isinstance(waiting.wait().error, NotReadyError)
    with pytest.raises(NotReadyError):
        submit(scheduler, "late", (1,))
    engine.go_on()
    assert running.wait().reason is FinishReason.LENGTH
    assert len(running.tokens) == 50
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert engine.inner.shutdowns == 1
    assert not engine.alive


def test_shutdown_cuts_off_what_does_not_end(start: Starter) -> None:
    scheduler, engine = start()
    engine.hold()
    sink = submit(scheduler, "endless", (1,), max_tokens=90)
    eventually(lambda: scheduler.stats().running == 1)
    scheduler.shutdown(0.05)
    assert sink.wait().reason is FinishReason.ERROR
    assert isinstance(sink.wait().error, NotReadyError)
    assert engine.inner.shutdowns == 1


def test_second_shutdown_may_be_more_urgent(start: Starter) -> None:
    """A second Ctrl-C: the first one drains, the next one does not wait."""
    scheduler, engine = start()
    engine.hold()
    sink = submit(scheduler, "endless", (1,), max_tokens=90)
    eventually(lambda: scheduler.stats().running == 1)
    patient = threading.Thread(target=scheduler.shutdown, args=(1000.0,))
    patient.start()
    scheduler.shutdown(0.0)
    patient.join(PATIENCE_S)
    assert not patient.is_alive()
    assert isinstance(sink.wait().error, NotReadyError)
    scheduler.shutdown(0.0)
    assert engine.inner.shutdowns == 1


def test_shutdown_without_a_start() -> None:
    engine = WorkerEngine(make_limits())
    scheduler = Scheduler(engine)
    sink = submit(scheduler, "early", (1,))
    scheduler.shutdown(0.0)
    assert isinstance(sink.wait().error, NotReadyError)
    assert engine.inner.shutdowns == 1
    scheduler.start()
    with pytest.raises(NotReadyError):
        submit(scheduler, "late", (1,))


def test_shutdown_from_a_sink(start: Starter) -> None:
    scheduler, engine = start()
    sink = WaitingSink(lambda output: scheduler.shutdown(0.0))
    scheduler.submit(make_request("last", (1,), max_tokens=50), sink)
    sink.wait()
    eventually(lambda: engine.inner.shutdowns == 1)


def test_shutdown_when_the_thread_hangs() -> None:
    engine = WorkerEngine(make_limits())
    scheduler = Scheduler(engine, SchedulerConfig(shutdown_grace_s=0.05))
    scheduler.start()
    release = threading.Event()
    sink = WaitingSink(lambda output: (release.wait(PATIENCE_S), None)[1])
    scheduler.submit(make_request("blocked", (1,)), sink)
    assert sink.started.wait(PATIENCE_S)
    scheduler.shutdown(0.0)
    assert not engine.alive, "the engine is stopped all the same"
    release.set()
    sink.wait()


def test_many_threads_at_once(start: Starter) -> None:
    """Submit, cancel and look from eight threads; then shut down in the middle of it, from two."""
    config = SchedulerConfig(max_waiting=8, max_wait_s=5.0)
    scheduler, engine = start(config, max_slots=4, total_pages=24, context_tokens=60, pipeline_depth=2)
    sinks: list[tuple[WaitingSink, tuple[int, ...], int]] = []
    refusals: list[Exception] = []
    enough = threading.Event()

    def client(number: int) -> None:
        rng = random.Random(number)
        for i in range(200):
            name = f"{number}/{i}"
            prompt = prompt_of(rng.randrange(3), rng.randrange(1, 70))
            max_tokens = rng.randrange(1, 20)
            sink = WaitingSink()
            try:
                scheduler.submit(make_request(name, prompt, max_tokens=max_tokens), sink)
            except (QueueFullError, ContextLengthError) as error:
                refusals.append(error)
                time.sleep(0.001)
                continue
            except NotReadyError:
                return
            sinks.append((sink, prompt, max_tokens))
            scheduler.queue_position(name)
            scheduler.stats()
            if rng.random() < 0.3:
                scheduler.cancel(name)
            elif rng.random() < 0.5:
                sink.ended.wait(PATIENCE_S)
            if len(sinks) > 250:
                enough.set()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()
    assert enough.wait(60)
    stoppers = [threading.Thread(target=scheduler.shutdown, args=(0.05,)) for _ in range(2)]
    for thread in stoppers:
        thread.start()
    for thread in [*stoppers, *clients]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert scheduler.fault() is None
    for sink, prompt, max_tokens in sinks:
        finish = sink.wait()
        expected = alone(make_request("", prompt, max_tokens=max_tokens), recurrent=False, context_tokens=60)
        assert sink.tokens == expected[: len(sink.tokens)]
        if finish.reason is FinishReason.LENGTH:
            assert sink.tokens == expected
    assert sum(scheduler.stats().finished_total.values()) == len(sinks)
    assert engine.inner.shutdowns == 1
