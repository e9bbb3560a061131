"""What a rehearsal at full scale needs of its card, before a byte is taken. Needs no card and no Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tandem.core.cards import Capability
from tandem.core.errors import BudgetError
from tandem.core.plan import format_bytes
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.spec import footprint
from tandem.planner.geometry import BitWidths

PAGE_TOKENS = 256
SLOTS = 8
LONGEST_CHUNK = 8192
Told = Callable[[str, float], None]
"""Hears of every figure as it is found: its name, whose end is its unit (ms or tps), and its value."""


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
    # One page and one slot more are padding's.
    caches = sum(
        cache.bytes_per_token * (pages + 1) * PAGE_TOKENS + cache.bytes_per_sequence * (SLOTS + 1)
        for cache in planned.layer_cache
    )
    weights = sum(planned.layer_weight_bytes) + planned.embedding_bytes + planned.head_bytes
    scores = round(planned.workspace_bytes_per_token * pages * PAGE_TOKENS)
    working = planned.workspace_bytes + scores + planned.graph_bytes_per_layer * planned.num_layers
    return RehearsalPlan(weights, round(caches), pages, cache_format, working)
