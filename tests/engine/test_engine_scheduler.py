"""Engine and scheduler together: both sides of the StepEngine contract, with nothing of either stubbed."""

from __future__ import annotations

import random
import threading

import pytest
from engine_rig import Rig, expected, prompt

from tandem.core.requests import Finish, FinishReason, GenerationRequest, SamplingParams, TokenOutput
from tandem.scheduler.config import SchedulerConfig
from tandem.scheduler.loop import Scheduler


class Collector:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self.done = threading.Event()

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        self.tokens.append(output.token_id)
        return None

    def on_finish(self, finish: Finish) -> None:
        self.finish = finish
        self.done.set()


def request(name: str, tokens: list[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(name, tuple(tokens), SamplingParams(temperature=0.0), max_tokens)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("total_pages", [24, 96])
def test_every_request_gets_its_tokens_whatever_is_shared_preempted_or_cancelled(stages, total_pages):
    """Prompts share beginnings; the small pool forces preemption and replay, some requests are cut off."""
    dice = random.Random(stages)
    stems = [prompt(length, seed) for seed, length in enumerate((8, 16, 31))]
    with Rig(stages, state_checkpoints=6, total_pages=total_pages) as rig:
        scheduler = Scheduler(rig.engine, SchedulerConfig())
        scheduler.start()
        sent = []
        for index in range(40):
            tokens = dice.choice(stems) + prompt(dice.randint(0, 12), 100 + index % 7)
            sink, count = Collector(), dice.randint(1, 24)
            scheduler.submit(request(str(index), tokens, count), sink)
            sent.append((sink, tokens, count))
            if dice.random() < 0.1:
                scheduler.cancel(str(index))
        for sink, tokens, count in sent:
            assert sink.done.wait(60)
            assert sink.finish is not None
            assert sink.tokens == expected(tokens, len(sink.tokens))
            if sink.finish.reason is not FinishReason.CANCELLED:
                assert sink.finish.reason is FinishReason.LENGTH
                assert len(sink.tokens) == count
        stats = scheduler.stats()
        assert stats.prefix_hit_tokens_total > 0
        assert (stats.preemptions_total > 0) == (total_pages == 24)
        scheduler.shutdown(0.0)
        assert scheduler.stats().live_pages == 0


def test_a_fault_of_the_engine_ends_every_request_with_its_reason():
    armed = threading.Event()

    def hook(event: str) -> None:
        if armed.is_set():
            raise RuntimeError("the card fell out")

    with Rig(2, {1: hook}) as rig:
        scheduler = Scheduler(rig.engine, SchedulerConfig())
        scheduler.start()
        sinks = [Collector() for _ in range(12)]
        for index, sink in enumerate(sinks):
            scheduler.submit(request(str(index), prompt(40, index), 50), sink)
        armed.set()
        for sink in sinks:
            assert sink.done.wait(20)
            assert sink.finish is not None
            assert sink.finish.reason is FinishReason.ERROR
            assert "cpu:1 failed: RuntimeError: the card fell out" in str(sink.finish.error)
        assert "cpu:1" in (scheduler.fault() or "")
        scheduler.shutdown(0.0)
