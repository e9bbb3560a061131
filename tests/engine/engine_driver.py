"""The least a scheduler must do to drive an engine, so that tests can compose batches as they like."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.core.batch import Batch, EngineLimits, Run, RunKind, SequenceSpec, StepResult
from tandem.core.plan import Card, MemoryTerm, Plan, StagePlan
from tandem.core.protocols import StepEngine, TokenConstraint
from tandem.core.requests import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def make_plan(
    *,
    layers: int,
    stages: int,
    page_tokens: int = 4,
    chunk_tokens: int = 8,
    total_pages: int = 64,
    max_slots: int = 8,
    context_tokens: int = 96,
    card_bytes: int = 1 << 30,
) -> Plan:
    """Layers spread evenly over ``stages`` virtual cards."""
    cuts = [round(i * layers / stages) for i in range(stages + 1)]
    cards = [Card("cpu", i, card_bytes) for i in range(stages)]
    return Plan(
        stages=tuple(
            StagePlan(card, cuts[i], cuts[i + 1], has_embedding=i == 0, has_head=i == stages - 1)
            for i, card in enumerate(cards)
        ),
        page_tokens=page_tokens,
        chunk_tokens=chunk_tokens,
        total_pages=total_pages,
        max_slots=max_slots,
        context_tokens=context_tokens,
        terms=tuple(MemoryTerm(card.name, "weights", card_bytes // 2) for card in cards),
    )


@dataclass
class Running:
    """One sequence on its way: ``done`` positions are in the cache."""

    slot: int
    history: list[int]
    prompt_length: int
    pages: tuple[int, ...] = ()
    done: int = 0
    output: list[int] = field(default_factory=list)


class Driver:
    """Hands out pages in random order and turns sequences into runs."""

    def __init__(self, engine: StepEngine, seed: int = 0) -> None:
        self.engine = engine
        self.limits: EngineLimits = engine.limits
        self.free_pages = list(range(self.limits.total_pages))
        random.Random(seed).shuffle(self.free_pages)
        self.free_slots = list(range(self.limits.max_slots))
        self.sequences: dict[int, Running] = {}
        self.step = 0

    def open(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        output: Sequence[int] = (),
        constraint: TokenConstraint | None = None,
        shared_pages: tuple[int, ...] = (),
    ) -> Running:
        """``shared_pages`` hold the first chunks of the prompt already; ``output`` is to be replayed."""
        slot = self.free_slots.pop(0)
        sequence = Running(slot, [*prompt, *output], len(prompt), output=list(output))
        sequence.pages = shared_pages
        sequence.done = len(shared_pages) * self.limits.page_tokens
        self.engine.open_sequence(
            slot, SequenceSpec(sampling, tuple(sequence.history), len(prompt), constraint=constraint)
        )
        self.sequences[slot] = sequence
        return sequence

    def close(self, sequence: Running) -> None:
        self.engine.close_sequence(sequence.slot)
        self.free_slots.append(sequence.slot)
        del self.sequences[sequence.slot]

    def run(self, sequence: Running, rows: int = 1, **checkpoints: int) -> Run:
        """The sequence's next run: a chunk of its prompt, else up to ``rows`` known tokens."""
        start = sequence.done
        if start < sequence.prompt_length:
            kind = RunKind.PREFILL
            end = min(start + self.limits.chunk_tokens, sequence.prompt_length)
        else:
            kind = RunKind.ROWS
            end = min(start + rows, len(sequence.history))
        while len(sequence.pages) * self.limits.page_tokens < end:
            sequence.pages = (*sequence.pages, self.free_pages.pop())
        sequence.done = end
        return Run(
            slot=sequence.slot,
            kind=kind,
            tokens=tuple(sequence.history[start:end]),
            start=start,
            pages=sequence.pages,
            sample=end == len(sequence.history),
            **checkpoints,
        )

    def batch(self, runs: Sequence[Run]) -> Batch:
        self.step += 1
        return Batch(self.step, tuple(sorted(runs, key=lambda run: run.kind is RunKind.PREFILL)))

    def take(self, result: StepResult) -> None:
        assert not result.faults
        for sampled in result.sampled:
            sequence = self.sequences[sampled.slot]
            sequence.history += sampled.tokens
            sequence.output += sampled.tokens

    def advance(self, sequences: Sequence[Running], rows: int = 1) -> StepResult:
        result = self.engine.submit(self.batch([self.run(s, rows) for s in sequences])).result(timeout=300)
        assert result.step == self.step
        self.take(result)
        return result

    def generate(
        self, sequence: Running, tokens: int, beside: Sequence[Running] = (), rows: int = 1
    ) -> list[int]:
        """Advance until ``sequence`` has ``tokens`` output tokens, the others in the same batches."""
        while len(sequence.output) < tokens or sequence.done < len(sequence.history) - 1:
            self.advance([sequence, *beside], rows)
        return sequence.output[:tokens]
