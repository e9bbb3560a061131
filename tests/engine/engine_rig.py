"""An engine over FakeStages and what its sequences must come to."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from types import TracebackType

from engine_driver import Driver, make_plan
from fake_stage import VOCAB, WIDTH, FakeStage, reference_token

from tandem.core.plan import Card, MemoryTerm
from tandem.engine.build import build_engine, card_device

LAYERS = 3


class Rig:
    """Ends its engine with the test. ``hooks[i]`` goes to the model of stage i."""

    def __init__(
        self,
        stages: int = 1,
        hooks: dict[int, Callable[[str], None]] | None = None,
        cards: Sequence[Card] | None = None,
        state_checkpoints: int = 0,
        **plan,
    ) -> None:
        self.plan = make_plan(layers=LAYERS, stages=stages, **plan)
        if cards is not None:
            placed = zip(self.plan.stages, cards, strict=True)
            terms = tuple(MemoryTerm(card.name, "weights", 1 << 20) for card in cards)
            self.plan = dataclasses.replace(
                self.plan, stages=tuple(dataclasses.replace(s, card=c) for s, c in placed), terms=terms
            )
        self.models = [
            FakeStage(
                layers=range(stage.first_layer, stage.end_layer),
                pages=self.plan.total_pages,
                page_tokens=self.plan.page_tokens,
                slots=self.plan.max_slots,
                hook=(hooks or {}).get(index),
                device=str(card_device(stage.card)),
            )
            for index, stage in enumerate(self.plan.stages)
        ]
        self.engine = build_engine(
            self.models,
            self.plan,
            residual_width=WIDTH,
            vocab_size=VOCAB,
            state_checkpoints=state_checkpoints,
        )
        self.driver = Driver(self.engine)

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.shutdown()


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def expected(start: list[int], count: int) -> list[int]:
    """The ``count`` greedy tokens after ``start``."""
    tokens = list(start)
    for _ in range(count):
        tokens.append(reference_token(tokens, LAYERS))
    return tokens[len(start) :]
