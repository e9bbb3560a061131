"""What a kind of card is served with unless the user says otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.core.cards import CardKind
from tandem.core.plan import MIB, Card
from tandem.planner.place import PlanRequest


@dataclass(frozen=True, slots=True)
class CardDefaults:
    """Sizes in tokens and bytes."""

    kind: CardKind
    page_tokens: int
    chunk_tokens: int
    runtime_bytes: int
    spare: int
    """Slots, and pages, that belong to no sequence: padding rows of captured steps live there."""
    embedding_may_leave: bool
    """See PlanRequest."""

    def decide(self, asked: PlanRequest) -> PlanRequest:
        """The request with all that the kind of card decides."""
        return replace(
            asked,
            page_tokens=self.page_tokens_of(asked.chunk_tokens),
            runtime_bytes=self.runtime_bytes,
            spare=self.spare,
            embedding_may_leave=self.embedding_may_leave,
        )

    def page_tokens_of(self, chunk_tokens: int) -> int:
        """The largest page no larger than usual of which a chunk is a whole number."""
        return math.gcd(self.page_tokens, chunk_tokens)


CPU = CardDefaults(
    "cpu", page_tokens=64, chunk_tokens=64, runtime_bytes=0, spare=0, embedding_may_leave=False
)
"""Small chunks cost the CPU kernels nothing (1,024 tokens: 3.16 s of CPU in chunks of 64, 3.04 of 128), halve
the wait of running streams behind a prompt, and leave 7 % of it to a repeated one (2 cores, 2026-11-30). A
virtual card counts what its stage allocates; the process's own libraries belong to no card."""
CUDA = CardDefaults(
    "cuda", page_tokens=256, chunk_tokens=2048, runtime_bytes=700 * MIB, spare=1, embedding_may_leave=True
)
"""Driver context and kernels of one card: 0.4 to 1.0 GiB on current drivers (an estimate until measured)."""


def defaults_for(cards: Sequence[Card]) -> CardDefaults:
    """Of several kinds of card the stages share one chunk and one cache format: those of CUDA."""
    return CUDA if any(card.kind == "cuda" for card in cards) else CPU
