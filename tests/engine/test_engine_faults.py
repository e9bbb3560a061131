"""Faults, stalls, shutdown and budgets."""

import dataclasses
import threading
import time

import pytest
from engine_driver import GREEDY, make_plan
from engine_rig import LAYERS, Rig, expected, prompt
from fake_stage import VOCAB, WIDTH, FakeStage

from tandem.core.batch import Batch, SequenceSpec
from tandem.core.errors import BudgetError, EngineFault
from tandem.core.plan import GIB, Card, MemoryTerm
from tandem.engine.budget import check_plan
from tandem.engine.build import build_engine


def raise_at(event: str):
    def hook(now: str) -> None:
        if now.startswith(event):
            raise RuntimeError("the card fell out")

    return hook


def block_at(event: str, started: threading.Event, release: threading.Event):
    def hook(now: str) -> None:
        if now.startswith(event):
            started.set()
            release.wait(30)

    return hook


def stage_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("tandem-stage")}


def wait_until(condition, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test():
    yield
    wait_until(lambda: not stage_threads())


@pytest.mark.parametrize(
    ("stage", "event"),
    [(stage, event) for stage in range(3) for event in ("prefill", "rows", "reset")] + [(2, "logits")],
)
def test_an_exception_in_a_worker_ends_everything_in_flight(stage, event):
    armed = threading.Event()
    hook = raise_at(event)
    with Rig(3, {stage: lambda now: hook(now) if armed.is_set() else None}) as rig:
        driver = rig.driver
        ready = driver.open(prompt(4))
        driver.generate(ready, 1)
        armed.set()
        other = driver.open(prompt(80, seed=1))
        futures = []
        try:
            futures.append(rig.engine.submit(driver.batch([driver.run(ready), driver.run(other)])))
            futures += [rig.engine.submit(driver.batch([driver.run(other)])) for _ in range(9)]
        except EngineFault:
            pass  # the fault was quicker than the submits
        faults = [fault for future in futures if (fault := future.exception(timeout=10)) is not None]
        assert len(faults) >= len(futures) - 1  # the rows of a batch may be done before its chunk fails
        for fault in faults:
            assert isinstance(fault, EngineFault)
            assert f"Stage {stage} (layers {stage} to {stage}) on cpu:{stage} failed" in str(fault)
            assert "RuntimeError: the card fell out" in str(fault)
            assert isinstance(fault.__cause__, RuntimeError)
        wait_until(lambda: not stage_threads())
        with pytest.raises(EngineFault, match=f"cpu:{stage}"):
            rig.engine.submit(Batch(99, ()))
        with pytest.raises(EngineFault, match=f"cpu:{stage}"):
            rig.engine.open_sequence(5, SequenceSpec(GREEDY, (1,), 1))
        rig.engine.close_sequence(0)


def test_batches_done_before_a_fault_keep_their_results():
    with Rig(2, {1: raise_at("rows")}) as rig:
        sequence = rig.driver.open(prompt(5))
        rig.driver.advance([sequence])
        assert sequence.output == expected(prompt(5), 1)
        with pytest.raises(EngineFault):
            rig.driver.advance([sequence])


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_shutdown_of_an_idle_engine_ends_its_threads_and_may_be_repeated(stages):
    rig = Rig(stages)
    assert len(stage_threads()) == stages
    for _ in range(2):
        rig.engine.shutdown()
        assert not stage_threads()
    assert rig.engine.memory() == ()
    with pytest.raises(EngineFault, match="shut down"):
        rig.driver.open(prompt(3))


@pytest.mark.parametrize("stuck", [0, 1])
def test_shutdown_with_a_stuck_stage_returns_and_ends_what_is_in_flight(stuck):
    """The stuck worker cannot be ended from outside, but nobody waits for it."""
    started, release = threading.Event(), threading.Event()
    with Rig(2, {stuck: block_at("prefill", started, release)}) as rig:
        sequence = rig.driver.open(prompt(80))
        futures = [rig.engine.submit(rig.driver.batch([rig.driver.run(sequence)])) for _ in range(10)]
        assert started.wait(10)
        begin = time.monotonic()
        rig.engine.shutdown()
        assert time.monotonic() - begin < 3
        for future in futures:
            with pytest.raises(EngineFault, match="shut down"):
                future.result(timeout=0)
        release.set()


def test_a_fault_reaches_a_stage_that_waits_for_a_buffer():
    """Stage 1 stalls while stage 0 fills every buffer and waits; then stage 1 raises."""
    started, release = threading.Event(), threading.Event()

    def hook(now: str) -> None:
        block_at("prefill", started, release)(now)
        raise_at("prefill")(now)

    with Rig(2, {1: hook}) as rig:
        sequence = rig.driver.open(prompt(80))
        futures = [rig.engine.submit(rig.driver.batch([rig.driver.run(sequence)])) for _ in range(10)]
        assert started.wait(10)
        wait_until(lambda: "prefill 16+8" in rig.models[0].events)
        release.set()
        for future in futures:
            with pytest.raises(EngineFault, match="Stage 1"):
                future.result(timeout=10)


def test_stages_work_at_the_same_time():
    """Stage 0 takes the next batch while stage 1 is still busy with the last one."""
    started, release = threading.Event(), threading.Event()
    with Rig(2, {1: block_at("prefill", started, release)}) as rig:
        first, second = rig.driver.open(prompt(4)), rig.driver.open(prompt(9, seed=1))
        one = rig.engine.submit(rig.driver.batch([rig.driver.run(first)]))
        assert started.wait(10)
        two = rig.engine.submit(rig.driver.batch([rig.driver.run(second)]))
        wait_until(lambda: "prefill 0+8" in rig.models[0].events)
        assert not one.done()
        assert not two.done()
        release.set()
        assert one.result(10).sampled[0].tokens == tuple(expected(prompt(4), 1))
        assert two.result(10).sampled == ()


def test_a_future_cannot_be_cancelled_under_the_engine():
    with Rig() as rig:
        sequence = rig.driver.open(prompt(3))
        future = rig.engine.submit(rig.driver.batch([rig.driver.run(sequence)]))
        assert not future.cancel()
        assert future.result(10).sampled


def test_a_plan_over_its_budget_is_refused_before_anything_else():
    plan = make_plan(layers=4, stages=2, card_bytes=10 * GIB)
    terms = (MemoryTerm("cpu:0", "weights", 4 * GIB), MemoryTerm("cpu:1", "weights", 8 * GIB))
    check_plan(dataclasses.replace(plan, terms=terms))
    terms = (*terms, MemoryTerm("cpu:1", "kv_pages", 3 * GIB))
    with pytest.raises(BudgetError) as caught:
        check_plan(dataclasses.replace(plan, terms=terms))
    for part in (
        "needs 11.00 GiB on cpu:1",
        "1.00 GiB more",
        "10.00 GiB",
        "kv_pages 3.00 GiB",
        "try: a shorter",
    ):
        assert part in str(caught.value)


def test_two_stages_on_one_card_share_its_budget():
    plan = make_plan(layers=4, stages=2, card_bytes=10)
    card = Card("cpu", 0, 10)
    stages = tuple(dataclasses.replace(stage, card=card) for stage in plan.stages)
    terms = (MemoryTerm("cpu:0", "weights", 6), MemoryTerm("cpu:0", "weights", 6))
    with pytest.raises(BudgetError, match="12 B on cpu:0"):
        check_plan(dataclasses.replace(plan, stages=stages, terms=terms))


def test_allocations_over_the_plan_are_refused_before_a_worker_starts():
    plan = make_plan(layers=LAYERS, stages=1)
    plan = dataclasses.replace(plan, terms=(MemoryTerm("cpu:0", "weights", 2000),))
    model = FakeStage(layers=range(LAYERS), pages=64, page_tokens=4, slots=8)
    with pytest.raises(BudgetError, match=r"cpu:0 holds .* where 1\.95 KiB were planned.*layout") as caught:
        build_engine([model], plan, residual_width=WIDTH, vocab_size=VOCAB)
    assert "weights 2.93 KiB" in str(caught.value)


def test_memory_reports_every_card_s_bytes():
    with Rig(2) as rig:
        terms = {(term.card, term.name): term.bytes for term in rig.engine.memory()}
        assert terms["cpu:0", "weights"] == rig.models[0].weight_bytes
        assert terms["cpu:1", "cache"] == rig.models[1].cache_bytes
        assert ("cpu:0", "transfer") not in terms
        rows = rig.engine.limits.max_step_rows
        assert terms["cpu:1", "transfer"] == 2 * rows * WIDTH * 4
        assert terms["cpu:0", "layout"] >= 8 * (8 * 24 + 24 * 24) / 2


def test_models_and_stages_must_agree_in_number():
    with pytest.raises(ValueError, match="1 stage models for a plan of 2 stages"):
        build_engine(
            [FakeStage(layers=range(1), pages=1, page_tokens=1, slots=1)],
            make_plan(layers=LAYERS, stages=2),
            residual_width=WIDTH,
            vocab_size=VOCAB,
        )
