"""A tiny GLM behind the real engine and scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tandem.core.plan import Card, MemoryTerm, Plan, StagePlan
from tandem.core.requests import GenerationRequest, SamplingParams
from tandem.engine.build import build_engine
from tandem.scheduler.config import PrefixReuse, SchedulerConfig
from tandem.scheduler.loop import Scheduler

from .answer import Answer
from .rig import PAGE_TOKENS, build_stages, read_spec

CHUNK = 32
GREEDY = SamplingParams(temperature=0.0)


class Serving:
    """Ends its engine with the test."""

    def __init__(
        self,
        folder: Path,
        cuts: Sequence[int] = (),
        *,
        reuse: PrefixReuse = "exact",
        total_pages: int = 96,
        checkpoints: int = 16,
        cache: str = "q8",
    ) -> None:
        spec = read_spec(folder)
        bounds = [0, *cuts, spec.num_layers]
        cards = [Card("cpu", i, 1 << 30) for i in range(len(bounds) - 1)]
        stages = build_stages(folder, cuts, chunk_tokens=CHUNK, total_pages=total_pages, cache=cache)
        plan = Plan(
            stages=tuple(
                StagePlan(card, bounds[i], bounds[i + 1], i == 0, i == len(cards) - 1)
                for i, card in enumerate(cards)
            ),
            page_tokens=PAGE_TOKENS,
            chunk_tokens=CHUNK,
            total_pages=total_pages,
            max_slots=8,
            context_tokens=min(1024, total_pages * PAGE_TOKENS),
            terms=tuple(MemoryTerm(card.name, "weights", 1 << 29) for card in cards),
        )
        engine = build_engine(
            stages,
            plan,
            residual_width=spec.residual_width,
            vocab_size=spec.vocab_size,
            state_checkpoints=0 if reuse == "off" else checkpoints,
            threads=1,
        )
        self.scheduler = Scheduler(engine, SchedulerConfig(prefix_reuse=reuse))
        self.scheduler.start()
        self._sent = 0

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scheduler.shutdown(0.0)

    def send(self, prompt: Sequence[int], max_tokens: int = 12) -> Answer:
        answer = Answer()
        self._sent += 1
        self.scheduler.submit(GenerationRequest(str(self._sent), tuple(prompt), GREEDY, max_tokens), answer)
        return answer

    def cancel_last(self) -> None:
        self.scheduler.cancel(str(self._sent))
