"""A GLM of random weights behind the real engine and scheduler, on stages of one card."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Literal

import torch
from tests.glm.answer import Answer

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.plan import Card, MemoryTerm, Plan, StagePlan
from tandem.core.requests import GenerationRequest, SamplingParams
from tandem.engine.build import build_engine
from tandem.loader.base import TensorSource
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.model import build_stage
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS
from tandem.scheduler.config import PrefixReuse, SchedulerConfig
from tandem.scheduler.loop import Scheduler

PAGE_TOKENS, CHUNK, PAGES, SLOTS = 16, 64, 192, 8
GREEDY = SamplingParams(temperature=0.0)


def plan_of(
    spec: Glm5NextSpec,
    cuts: Sequence[int],
    kind: Literal["cpu", "cuda"],
    *,
    chunk: int = CHUNK,
    pages: int = PAGES,
    page_tokens: int = PAGE_TOKENS,
    slots: int = SLOTS,
    first_card: int = 0,
) -> Plan:
    """Stages cut before the given layers, on cards of their own as far as there are CUDA cards."""
    bounds = [0, *cuts, spec.num_layers]
    cards = torch.cuda.device_count() if kind == "cuda" else len(bounds)
    stages = tuple(
        StagePlan(
            Card(kind, (first_card + i) % cards, 1 << 40), first, end, first == 0, end == spec.num_layers
        )
        for i, (first, end) in enumerate(pairwise(bounds))
    )
    return Plan(
        stages=stages,
        page_tokens=page_tokens,
        chunk_tokens=chunk,
        total_pages=pages,
        max_slots=slots,
        context_tokens=pages * page_tokens // 2,
        terms=tuple(MemoryTerm(stage.card.name, "weights", 1 << 39) for stage in stages),
    )


class Serving:
    """Ends its engine with the test."""

    def __init__(
        self,
        cuts: Sequence[int] = (),
        *,
        reuse: PrefixReuse = "exact",
        cache: str = "fp16",
        kind: Literal["cpu", "cuda"] = "cuda",
        spec: Glm5NextSpec = SMALL,
        source: TensorSource | None = None,
        chunk: int = CHUNK,
        first_card: int = 0,
    ) -> None:
        plan = plan_of(spec, cuts, kind, chunk=chunk, first_card=first_card)
        source = source or RandomCheckpoint(spec, SMALL_BITS, torch.device("cpu"))
        self.stages = [
            build_stage(
                spec,
                source,
                stage,
                total_pages=plan.total_pages,
                page_tokens=plan.page_tokens,
                chunk_tokens=plan.chunk_tokens,
                max_slots=plan.max_slots,
                cache_dtype=cache,
            )
            for stage in plan.stages
        ]
        self.engine = build_engine(
            self.stages,
            plan,
            residual_width=spec.residual_width,
            vocab_size=spec.vocab_size,
            state_checkpoints=0 if reuse == "off" else 16,
            threads=1,
        )
        self.scheduler = Scheduler(self.engine, SchedulerConfig(prefix_reuse=reuse))
        self.scheduler.start()
        self._sent = 0

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scheduler.shutdown(0.0)

    def send(self, prompt: Sequence[int], max_tokens: int = 24, sampling: SamplingParams = GREEDY) -> Answer:
        answer = Answer()
        self._sent += 1
        self.scheduler.submit(GenerationRequest(str(self._sent), tuple(prompt), sampling, max_tokens), answer)
        return answer


def logits_of(
    kind: Literal["cpu", "cuda"],
    spec: Glm5NextSpec,
    source: TensorSource,
    cache: str,
    tokens: Sequence[int],
    prompt: int = 100,
) -> torch.Tensor:
    """fp32 [T, V]: a prompt in chunks, the rest in steps of 1 to 7 rows."""
    plan = plan_of(spec, (), kind)
    stage = build_stage(
        spec,
        source,
        plan.stages[0],
        total_pages=PAGES,
        page_tokens=PAGE_TOKENS,
        chunk_tokens=CHUNK,
        max_slots=SLOTS,
        cache_dtype=cache,
    )
    device = "cuda" if kind == "cuda" else "cpu"
    # Pages of a whole number of chunks, and not in order.
    table = torch.randperm(PAGES, generator=torch.Generator().manual_seed(2))[:64].int().to(device)
    parts = []
    with torch.inference_mode():
        for start in range(0, prompt, CHUNK):
            length = min(CHUNK, prompt - start)
            ids = torch.tensor([*tokens[start : start + length], *[0] * (CHUNK - length)], device=device)
            layout = PrefillLayout(2, start, length, CHUNK, table, ids)
            hidden = stage.forward_prefill(stage.embed(ids), layout)
            parts.append(stage.logits(hidden[:length].contiguous()).cpu().clone())
        position, rows = prompt, 0
        while position < len(tokens):
            rows = min(rows % 7 + 1, len(tokens) - position)
            positions = torch.arange(position, position + rows, dtype=torch.int32, device=device)
            layout = RowsLayout(
                torch.tensor(tokens[position : position + rows], device=device),
                positions,
                torch.zeros_like(positions),
                torch.tensor([0, rows], dtype=torch.int32, device=device),
                torch.tensor([2], dtype=torch.int32, device=device),
                table[None],
            )
            hidden = stage.forward_rows(stage.embed(layout.token_ids), layout)
            parts.append(stage.logits(hidden).cpu().clone())
            position += rows
    return torch.cat(parts)
