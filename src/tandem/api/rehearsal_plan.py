"""What a rehearsal at full scale needs of its card, before a byte is taken. Needs no card and no Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tandem.api.card_defaults import CUDA
from tandem.core.cards import Capability
from tandem.core.errors import BudgetError
from tandem.core.plan import Card, StagePlan, format_bytes
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import RELEASED
from tandem.models.glm5_next.spec import footprint
from tandem.planner.geometry import BitWidths
from tandem.planner.place import PlanRequest, stage_terms

PAGE_TOKENS = 256
SLOTS = 8
LONGEST_CHUNK = 8192
Told = Callable[[str, float], None]
"""Hears of every figure as it is found: its name, whose end is its unit (ms or tps), and its value."""


def model_name(spec: Glm5NextSpec) -> str:
    """As records name it."""
    return "glm-5.3-flash" if spec.num_layers == RELEASED.num_layers else "glm small"


def nobody(name: str, value: float) -> None:
    """Hears nothing."""


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """Bytes by term, and the pages of the caches."""

    weights_bytes: int
    caches_bytes: int
    pages: int
    cache_format: str
    """fp16 or q8."""
    working_bytes: int
    """Steps, graphs and the longest chunk. 3.8 GB above weights and caches were measured on an H200, fp16."""

    @property
    def context_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    def check(self, free_bytes: int) -> None:
        """Raises BudgetError if a card with so many free bytes cannot hold it."""
        needed = self.weights_bytes + self.caches_bytes + self.working_bytes
        if needed <= free_bytes:
            return
        raise BudgetError(
            f"A rehearsal at full scale with {self.context_tokens:,} tokens needs {format_bytes(needed)}"
            f" (weights {format_bytes(self.weights_bytes)}, caches {format_bytes(self.caches_bytes)}, working"
            f" memory {format_bytes(self.working_bytes)})",
            found=f"{format_bytes(free_bytes)} free on cuda:0",
            remedy="--scale small; `tandem plan` says what several cards hold",
        )


def plan_rehearsal(
    spec: Glm5NextSpec,
    bits: BitWidths,
    context_tokens: int,
    cache_format: str,
    capability: Capability | None = None,
) -> RehearsalPlan:
    """The planner's account of a model whose tensors would have these shapes and bit widths."""
    source = RandomCheckpoint(spec, bits, torch.device("cpu"))
    headers = {name: source.header(name) for name in source.names()}
    planned = footprint(
        spec,
        headers,
        chunk_tokens=LONGEST_CHUNK,
        cache_dtype=cache_format,
        card_kind="cuda",
        capability=capability,
    )
    pages = -(-context_tokens // PAGE_TOKENS)
    card = Card("cuda", 0, 0)  # whatever it has: check() compares
    whole = StagePlan(card, 0, planned.num_layers, has_embedding=True, has_head=True)
    request = PlanRequest(
        max_slots=SLOTS, page_tokens=PAGE_TOKENS, chunk_tokens=LONGEST_CHUNK, spare=CUDA.spare
    )
    terms = stage_terms(planned, whole, request, pages, pages * PAGE_TOKENS)

    def together(*names: str) -> int:
        return sum(term.bytes for term in terms if term.name in names)

    weights = together("weights", "embedding", "head")
    caches = together("kv_pages", "states")
    return RehearsalPlan(weights, caches, pages, cache_format, together("workspace", "graphs", "layout"))
