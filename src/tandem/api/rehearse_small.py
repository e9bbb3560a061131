"""A small rehearsal: a GLM of random EXL3 weights, every kind of layer, behind the real engine, on any cards.

Steps are timed from their submission to their result, sampling included, as a server sees them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tandem.api.card_defaults import defaults_for
from tandem.api.load import footprint_of
from tandem.core.batch import Batch, Run, RunKind, SequenceSpec
from tandem.core.cards import CardRequest, format_cards
from tandem.core.machine import usable_processors
from tandem.core.plan import Card, MemoryTerm
from tandem.core.protocols import StepEngine
from tandem.core.requests import SamplingParams
from tandem.engine.build import build_engine
from tandem.models.glm5_next.model import build_stage
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS
from tandem.planner.place import PlanRequest, place

CONTEXT_TOKENS, CHUNK_TOKENS, SLOTS = 2048, 256, 8
LONG_TOKENS, SHORT_TOKENS = 1024, 256
_WARM_UP, _REPEATS = 1, 5
_RESULT_S = 600.0
"""The first step of a kind compiles kernels."""


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
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))
    number: int = 0

    def open(self, slot: int, tokens: int, first_page: int) -> _Sequence:
        limits = self.engine.limits
        pages = -(-tokens // limits.chunk_tokens) * (limits.chunk_tokens // limits.page_tokens)
        sampling = SamplingParams(temperature=0.0)
        self.engine.open_sequence(slot, SequenceSpec(sampling, (0,), 1))
        return _Sequence(slot, tuple(range(first_page, first_page + pages)))

    def prefill(self, sequence: _Sequence, tokens: int) -> float:
        """Tokens a second of a prompt, chunk after chunk."""
        begin = time.perf_counter()
        for start in range(0, tokens, self.engine.limits.chunk_tokens):
            length = min(self.engine.limits.chunk_tokens, tokens - start)
            self._submit([self._run(sequence, RunKind.PREFILL, length)])
        return tokens / (time.perf_counter() - begin)

    def rows(self, sequences: Sequence[_Sequence], rows: int) -> float:
        """Median milliseconds of a step of so many rows of each sequence, all of them accepted."""
        times = []
        for _ in range(_WARM_UP + _REPEATS):
            runs = [self._run(sequence, RunKind.ROWS, rows) for sequence in sequences]
            begin = time.perf_counter()
            self._submit(runs)
            times.append((time.perf_counter() - begin) * 1e3)
        return round(statistics.median(times[_WARM_UP:]), 3)

    def _run(self, sequence: _Sequence, kind: RunKind, count: int) -> Run:
        ids = torch.randint(SMALL.vocab_size, (count,), generator=self.generator).tolist()
        run = Run(sequence.slot, kind, tuple(ids), sequence.done, sequence.pages, sample=True)
        sequence.done += count
        return run

    def _submit(self, runs: Sequence[Run]) -> None:
        self.number += 1
        self.engine.submit(Batch(self.number, tuple(runs))).result(_RESULT_S)


def rehearse_small(requests: Sequence[CardRequest], cards: tuple[Card, ...]) -> dict[str, object]:
    """Load, measure, and return the record: cards, steps, and bytes by term, planned and measured.

    Raises UserError subclasses for cards that cannot hold or compute it.
    """
    begin = time.perf_counter()
    usual = defaults_for(cards)
    source = RandomCheckpoint(SMALL, SMALL_BITS, torch.device("cpu"))
    footprint = footprint_of(SMALL, source, CHUNK_TOKENS, SMALL.default_cache_format, usual.kind)
    request = PlanRequest(
        context_tokens=CONTEXT_TOKENS,
        pool_tokens=SLOTS * CONTEXT_TOKENS,
        max_slots=SLOTS,
        page_tokens=usual.page_tokens_of(CHUNK_TOKENS),
        chunk_tokens=CHUNK_TOKENS,
        runtime_bytes=usual.runtime_bytes,
        spare=usual.spare,
    )
    plan = place(footprint, cards, request)
    engine = build_engine(
        [
            build_stage(
                SMALL,
                source,
                stage,
                total_pages=plan.total_pages,
                page_tokens=plan.page_tokens,
                chunk_tokens=plan.chunk_tokens,
                max_slots=plan.max_slots,
                cache_dtype=SMALL.default_cache_format,
            )
            for stage in plan.stages
        ],
        plan,
        residual_width=SMALL.residual_width,
        vocab_size=SMALL.vocab_size,
        threads=usable_processors(),
    )
    loaded = time.perf_counter() - begin
    try:
        steps = _measure(engine)
        memory = {"planned": _by_term(plan.terms), "measured": _by_term(engine.memory())}
    finally:
        engine.shutdown()
    return {
        "model": "glm small",
        "card": ", ".join(dict.fromkeys(_name(card) for card in cards)),
        "torch": torch.__version__,
        "weights": "random, EXL3 mul1",
        "cards": format_cards(requests),
        "context_tokens": plan.context_tokens,
        "load_seconds": round(loaded, 1),
        "steps": steps,
        "memory": memory,
    }


def _measure(engine: StepEngine) -> dict[str, float]:
    """Median milliseconds of every kind of step, and tokens a second of the long prompt."""
    steps = _Steps(engine)
    pages = CONTEXT_TOKENS // engine.limits.page_tokens
    long, *short = (steps.open(slot, CONTEXT_TOKENS, slot * pages) for slot in range(SLOTS))
    steps.prefill(short[0], CHUNK_TOKENS)  # compiles
    rate = steps.prefill(long, LONG_TOKENS)
    found: dict[str, float] = {}
    for rows in (1, 2, 4, 8):
        kind = "decode" if rows == 1 else "verify"
        found[f"{kind}_{rows}_1k_ms"] = steps.rows([long], rows)
    for sequence in short[1:]:
        steps.prefill(sequence, SHORT_TOKENS)
    for count in (4, 8):
        every = [*short, long][:count]
        found[f"decode_{count}x256_ms"] = steps.rows(every, 1)
    found[f"prefill_{LONG_TOKENS}_c{CHUNK_TOKENS}_tps"] = round(rate, 1)
    return found


def _by_term(terms: Sequence[MemoryTerm]) -> dict[str, int]:
    """Bytes of all cards together."""
    sums: dict[str, int] = {}
    for term in terms:
        sums[term.name] = sums.get(term.name, 0) + term.bytes
    return sums


def _name(card: Card) -> str:
    return torch.cuda.get_device_name(card.index) if card.kind == "cuda" else "CPU"
