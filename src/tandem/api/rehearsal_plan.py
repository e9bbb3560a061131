"""What a rehearsal at full scale needs of its card, before a byte is taken. Needs no card and no Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.core.errors import BudgetError
from tandem.core.plan import format_bytes
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.spec import footprint
from tandem.planner.geometry import BitWidths

PAGE_TOKENS = 256
SLOTS = 8
_WORKING_BYTES = 4 * 2**30
"""Steps, graphs and a chunk of 8,192 tokens: 3.8 GB above weights and caches on an H200, 2026-11-30."""


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """Bytes by term, and the pages of the caches."""

    weights_bytes: int
    caches_bytes: int
    pages: int
    cache_format: str
    """fp16 or q8."""

    @property
    def context_tokens(self) -> int:
        return self.pages * PAGE_TOKENS

    def check(self, free_bytes: int) -> None:
        """Raises BudgetError if a card with so many free bytes cannot hold it."""
        needed = self.weights_bytes + self.caches_bytes + _WORKING_BYTES
        if needed <= free_bytes:
            return
        raise BudgetError(
            f"A rehearsal at full scale with {self.context_tokens:,} tokens needs {format_bytes(needed)}"
            f" (weights {format_bytes(self.weights_bytes)}, caches {format_bytes(self.caches_bytes)}, working"
            f" memory {format_bytes(_WORKING_BYTES)})",
            found=f"{format_bytes(free_bytes)} free on cuda:0",
            remedy="--scale small; `tandem plan` says what several cards hold",
        )


def plan_rehearsal(
    spec: Glm5NextSpec, bits: BitWidths, context_tokens: int, cache_format: str
) -> RehearsalPlan:
    """The planner's account of a model whose tensors would have these shapes and bit widths."""
    source = RandomCheckpoint(spec, bits, torch.device("cpu"))
    headers = {name: source.header(name) for name in source.names()}
    planned = footprint(spec, headers, chunk_tokens=4096, cache_dtype=cache_format, card_kind="cuda")
    pages = -(-context_tokens // PAGE_TOKENS)
    caches = sum(
        cache.bytes_per_token * pages * PAGE_TOKENS + cache.bytes_per_sequence * SLOTS
        for cache in planned.layer_cache
    )
    weights = sum(planned.layer_weight_bytes) + planned.embedding_bytes + planned.head_bytes
    return RehearsalPlan(weights, round(caches), pages, cache_format)
