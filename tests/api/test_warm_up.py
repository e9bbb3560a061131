"""The canary: an engine that answers everything with one token never says it is ready (case L6)."""

from concurrent.futures import Future

import pytest

from tandem.api.warm_up import warm_up
from tandem.core.batch import EngineLimits, RunKind, Sampled, SlotFault, StepResult
from tandem.core.errors import EngineFault


class ScriptedEngine:
    """Answers each run by ``answer(run)``: a token, or a fault's message."""

    def __init__(self, answer, **changes):
        values = {
            "page_tokens": 64,
            "chunk_tokens": 128,
            "total_pages": 16,
            "max_slots": 2,
            "max_step_rows": 18,
            "context_tokens": 512,
            "pipeline_depth": 1,
        }
        self.limits = EngineLimits(**(values | changes))
        self.answer = answer
        self.runs = []
        self.steps = []
        self.open = 0

    def open_sequence(self, slot, spec):
        self.open += 1

    def close_sequence(self, slot):
        self.open -= 1

    def submit(self, batch):
        assert batch.step == len(self.steps)
        self.steps.append([len(run.tokens) for run in batch.runs])
        sampled, faults = [], []
        for run in batch.runs:
            assert run.start + len(run.tokens) <= min(
                len(run.pages) * self.limits.page_tokens, self.limits.context_tokens
            )
            assert max(run.pages) < self.limits.total_pages
            self.runs.append(run)
            answer = self.answer(run)
            if isinstance(answer, str):
                faults.append(SlotFault(run.slot, answer))
            else:
                sampled.append(Sampled(run.slot, (answer,), (None,)))
        future = Future()
        future.set_result(StepResult(batch.step, tuple(sampled), tuple(faults)))
        return future


def test_a_healthy_engine_passes_after_prefill_and_rows_of_every_size():
    engine = ScriptedEngine(lambda run: sum(run.tokens) % 97)
    warm_up(engine, 1000)
    kinds = {(run.kind, len(run.tokens)) for run in engine.runs}
    assert {size for kind, size in kinds if kind is RunKind.ROWS} == {16, 8, 4, 2, 1}
    assert any(kind is RunKind.PREFILL for kind, _ in kinds)
    assert engine.open == 0


@pytest.mark.parametrize("slots", [1, 2, 5, 8, 64])
def test_as_many_sequences_run_side_by_side_as_there_are_slots(slots):
    engine = ScriptedEngine(lambda run: sum(run.tokens) % 97, max_slots=slots)
    warm_up(engine, 1000)
    together = {len(step) for step in engine.steps}
    assert together == {1} | {min(streams, slots) for streams in (8, 4, 2)}
    assert engine.open == 0


def test_one_token_whatever_is_asked_is_refused():
    engine = ScriptedEngine(lambda run: 0)
    with pytest.raises(EngineFault, match="token 0 after each of"):
        warm_up(engine, 1000)


def test_logits_that_are_not_finite_are_refused():
    with pytest.raises(EngineFault, match="not finite"):
        warm_up(ScriptedEngine(lambda run: "logits are not finite"), 1000)


@pytest.mark.parametrize("context", [2, 3, 17, 130])
def test_the_smallest_contexts_have_room(context):
    engine = ScriptedEngine(lambda run: (sum(run.tokens) + run.start) % 97, context_tokens=context)
    warm_up(engine, 1000)
