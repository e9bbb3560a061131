"""A rehearsal through the engine: a GLM of random EXL3 weights, served as a real one would be, on any cards.

Steps are timed from their submission to their result, sampling included, as a server sees them.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from tandem.api.card_defaults import defaults_for
from tandem.api.cuda_cards import common_capability
from tandem.api.load import footprint_of
from tandem.api.rehearsal_plan import SLOTS, Told, model_name, nobody
from tandem.core.batch import Batch, Run, RunKind, SequenceSpec, StepResult
from tandem.core.cards import CardRequest, format_cards
from tandem.core.errors import EngineFault, SettingsError
from tandem.core.machine import usable_processors
from tandem.core.plan import Card, MemoryTerm, Plan
from tandem.core.protocols import StepEngine
from tandem.core.requests import SamplingParams
from tandem.engine.build import build_engine, card_device
from tandem.engine.transfer import Entrance
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.model import build_stage
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.planner.geometry import BitWidths
from tandem.planner.place import PlanRequest, place

_WARM_UP, _TRANSFERS = 1, 20
_RESULT_S = 600.0
"""The first step of a kind compiles kernels."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is rehearsed: one long prompt and seven short ones, tokens."""

    context: int
    chunk: int
    long: int
    short: int
    repeats: int


SMALL_SIZES = Sizes(context=2048, chunk=256, long=1024, short=256, repeats=5)
RELEASED_SIZES = Sizes(context=16_384, chunk=4096, long=8192, short=4096, repeats=15)


@dataclass(slots=True)
class _Sequence:
    """A slot with random tokens; ``done`` positions are in the cache."""

    slot: int
    pages: tuple[int, ...]
    done: int = 0


@dataclass(slots=True)
class _Steps:
    """Composes batches by hand, where a scheduler would answer requests."""

    engine: StepEngine
    vocab_size: int
    repeats: int
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    number: int = 0

    def open(self, slot: int, tokens: int, first_page: int) -> _Sequence:
        limits = self.engine.limits
        pages = -(-tokens // limits.chunk_tokens) * (limits.chunk_tokens // limits.page_tokens)
        sampling = SamplingParams(temperature=0.0)
        self.engine.open_sequence(slot, SequenceSpec(sampling, (0,), 1))
        return _Sequence(slot, tuple(range(first_page, first_page + pages)))

    def prefill(self, sequence: _Sequence, tokens: int) -> float:
        """Tokens a second of a prompt; as many chunks in flight as there are stages."""
        chunk = self.engine.limits.chunk_tokens
        begin = time.perf_counter()
        waiting: deque[Future[StepResult]] = deque()
        for start in range(0, tokens, chunk):
            if len(waiting) == self.engine.limits.pipeline_depth:
                self._take(waiting.popleft())
            length = min(chunk, tokens - start)
            last = start + length == tokens
            waiting.append(self._submit([self._run(sequence, RunKind.PREFILL, length, sample=last)]))
        for chunk_done in waiting:
            self._take(chunk_done)
        return tokens / (time.perf_counter() - begin)

    def rows(self, sequences: Sequence[_Sequence], rows: int) -> float:
        """Median milliseconds of a step of so many rows of each sequence, all of them accepted."""
        return self.in_turns([sequences], rows)

    def in_turns(self, batches: Sequence[Sequence[_Sequence]], rows: int) -> float:
        """As ``rows`` with all ``batches`` in flight: milliseconds until each has had its step."""
        times: list[float] = []
        waiting: deque[Future[StepResult]] = deque()
        for _ in range(_WARM_UP + self.repeats + 1):
            begin = time.perf_counter()
            for batch in batches:
                if len(waiting) == len(batches):
                    self._take(waiting.popleft())
                waiting.append(self._submit([self._run(sequence, RunKind.ROWS, rows) for sequence in batch]))
            if len(batches) == 1:
                self._take(waiting.popleft())
            times.append((time.perf_counter() - begin) * 1e3)
        for step in waiting:
            self._take(step)
        return round(statistics.median(times[_WARM_UP + 1 :]), 3)

    def _run(self, sequence: _Sequence, kind: RunKind, count: int, *, sample: bool = True) -> Run:
        ids = torch.randint(self.vocab_size, (count,), generator=self.generator).tolist()
        run = Run(sequence.slot, kind, tuple(ids), sequence.done, sequence.pages, sample)
        sequence.done += count
        return run

    def _submit(self, runs: Sequence[Run]) -> Future[StepResult]:
        self.number += 1
        return self.engine.submit(Batch(self.number, tuple(runs)))

    def _take(self, step: Future[StepResult]) -> None:
        result = step.result(_RESULT_S)
        if result.faults:
            raise EngineFault(f"A rehearsed step failed: {result.faults[0].message}")


def rehearse_engine(
    spec: Glm5NextSpec,
    bits: BitWidths,
    sizes: Sizes,
    requests: Sequence[CardRequest],
    cards: tuple[Card, ...],
    *,
    pool_tokens: int | None = None,
    cache_format: str | None = None,
    told: Told = nobody,
) -> dict[str, object]:
    """Load, measure, and return the record: cards, steps, and bytes by term and card, planned and measured.

    ``pool_tokens``: of all caches together; what eight sequences need if nothing is said. Raises UserError
    subclasses for cards that cannot hold or compute it, EngineFault for logits that make no sense.
    """
    begin = time.perf_counter()
    least = SLOTS * sizes.context
    if pool_tokens is not None and pool_tokens < least:
        raise SettingsError(
            "The caches are too small for the rehearsed sequences",
            found=f"{pool_tokens:,} tokens",
            remedy=f"--context {least} or more",
        )
    usual = defaults_for(cards)
    kept = cache_format or spec.default_cache_format
    headers = RandomCheckpoint(spec, bits, torch.device("cpu"))
    footprint = footprint_of(spec, headers, sizes.chunk, kept, usual.kind, common_capability(cards))
    asked = PlanRequest(
        context_tokens=sizes.context,
        pool_tokens=pool_tokens or least,
        max_slots=SLOTS,
        chunk_tokens=sizes.chunk,
    )
    plan = place(footprint, cards, usual.decide(asked))
    engine = build_engine(
        [
            build_stage(
                spec,
                RandomCheckpoint(spec, bits, card_device(stage.card)),  # its tensors are made where they stay
                stage,
                total_pages=plan.total_pages,
                page_tokens=plan.page_tokens,
                chunk_tokens=plan.chunk_tokens,
                max_slots=plan.max_slots,
                cache_dtype=kept,
            )
            for stage in plan.stages
        ],
        plan,
        residual_width=spec.residual_width,
        vocab_size=spec.vocab_size,
        threads=usable_processors(),
    )
    loaded = time.perf_counter() - begin
    try:
        steps = _measure(engine, spec.vocab_size, sizes, told)
        memory: dict[str, object] = {"planned": _by_term(plan.terms), "measured": _by_term(engine.memory())}
        if len(plan.stages) > 1:
            memory["by_card"] = _by_card(plan, engine.memory())
            for rows in (1, 8, sizes.chunk):
                name = f"transfer_{rows}_rows_ms"
                steps[name] = _transfer(plan, spec.residual_width, rows)
                told(name, steps[name])
    finally:
        engine.shutdown()
    return {
        "model": model_name(spec),
        "card": ", ".join(dict.fromkeys(_name(card) for card in cards)),
        "torch": torch.__version__,
        "weights": "random, EXL3 mul1",
        "cards": format_cards(requests),
        "context_tokens": plan.context_tokens,
        "load_seconds": round(loaded, 1),
        "steps": steps,
        "memory": memory,
    }


def _measure(engine: StepEngine, vocab_size: int, sizes: Sizes, told: Told) -> dict[str, float]:
    """Median milliseconds of every kind of step, and tokens a second of the long prompt."""
    steps = _Steps(engine, vocab_size, sizes.repeats)
    pages = sizes.context // engine.limits.page_tokens
    long, *short = (steps.open(slot, sizes.context, slot * pages) for slot in range(SLOTS))
    steps.prefill(short[0], sizes.short)  # compiles
    rate = steps.prefill(long, sizes.long)
    found: dict[str, float] = {}

    def keep(name: str, value: float) -> None:
        found[name] = value
        told(name, value)

    for rows in (1, 2, 4, 8):
        kind = "decode" if rows == 1 else "verify"
        keep(f"{kind}_{rows}_{_thousands(sizes.long)}_ms", steps.rows([long], rows))
    for sequence in short[1:]:
        steps.prefill(sequence, sizes.short)
    for count in (4, 8):
        every = [*short, long][:count]
        keep(f"decode_{count}x{_thousands(sizes.short)}_ms", steps.rows(every, 1))
    stages = engine.limits.pipeline_depth
    if stages > 1:
        batches = [[*short, long][i::stages] for i in range(stages)]
        name = f"decode_{SLOTS}x{_thousands(sizes.short)}_in_{stages}_batches_ms"
        keep(name, steps.in_turns(batches, 1))
    keep(f"prefill_{sizes.long}_c{sizes.chunk}_tps", round(rate, 1))
    return found


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _by_term(terms: Sequence[MemoryTerm]) -> dict[str, int]:
    """Bytes of all cards together."""
    sums: dict[str, int] = {}
    for term in terms:
        sums[term.name] = sums.get(term.name, 0) + term.bytes
    return sums


def _by_card(plan: Plan, measured: Sequence[MemoryTerm]) -> dict[str, dict[str, object]]:
    """Each card's layers and bytes; ``allocated`` is what torch holds there."""
    found: dict[str, dict[str, object]] = {}
    for stage in plan.stages:
        name = stage.card.name
        found[name] = {
            "layers": f"{stage.first_layer} to {stage.end_layer - 1}",
            "planned": _by_term([term for term in plan.terms if term.card == name]),
            "measured": _by_term([term for term in measured if term.card == name]),
        }
        if stage.card.kind == "cuda":
            found[name]["allocated"] = torch.cuda.memory_allocated(stage.card.index)
            found[name]["peak"] = torch.cuda.max_memory_allocated(stage.card.index)
    return found


def _transfer(plan: Plan, width: int, rows: int) -> float:
    """Median milliseconds that so many rows take through host memory to the next card; the slowest pair's."""
    medians = []
    for sender, receiver in pairwise(card_device(stage.card) for stage in plan.stages):
        entrance = Entrance(rows, width, receiver, pinned=torch.cuda.is_available())
        hidden = torch.zeros(rows, width, device=sender)
        times = []
        for _ in range(_WARM_UP + _TRANSFERS):
            begin = time.perf_counter()
            sent = entrance.send(hidden)
            entrance.receive(sent, rows)
            if receiver.type == "cuda":
                torch.cuda.synchronize(receiver)
            times.append((time.perf_counter() - begin) * 1e3)
            entrance.release(sent)
        medians.append(statistics.median(times[_WARM_UP:]))
    return round(max(medians), 3)


def _name(card: Card) -> str:
    return torch.cuda.get_device_name(card.index) if card.kind == "cuda" else "CPU"
