"""What goes where: cards, stages, and the bytes of everything.

One accounting serves planner, loader, server and rehearsal. A term's ``quality`` says how far to trust it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KIB = 1024
MIB = 1024**2
GIB = 1024**3

Quality = Literal["exact", "estimated", "measured"]

Verdict = Literal["fits", "marginal", "no", "unknown"]
EXIT_CODES: dict[Verdict, int] = {"fits": 0, "marginal": 3, "no": 4, "unknown": 5}
"""What a command that judges a fit exits with."""


@dataclass(frozen=True, slots=True)
class Card:
    """One device that can hold stages. ``cpu`` cards are virtual: a worker with a byte budget of its own."""

    kind: Literal["cpu", "cuda"]
    index: int
    budget_bytes: int
    """What Tandem may use of it."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What one layer keeps: bytes per token (paged, padded to ``page_tokens``) and per sequence (a slot)."""

    bytes_per_token: float
    bytes_per_sequence: int = 0


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """The resident bytes of a model, part by part, before it is placed. Built torch-free from headers."""

    architecture: str
    layer_weight_bytes: tuple[int, ...]
    """Per layer, as they will lie in memory (not in the file)."""
    embedding_bytes: int
    head_bytes: int
    """Final norm and LM head; 0 for a head that is tied to the embedding and shares its memory."""
    tied_head: bool
    """The head reads the embedding table: a stage with the head but not the embedding needs a copy."""
    layer_cache: tuple[CacheSpec, ...]
    residual_bytes_per_token: int
    """What travels between stages."""
    workspace_bytes: int
    """Scratch of one stage for one prefill chunk and, on CUDA cards, for steps."""
    native_context_tokens: int
    """The longest context the model was made for."""
    checkpoint_bytes: int = 0
    """Host memory of one checkpoint of the recurrent state, all layers; 0 for models without such state.
    Their prefixes can only be reused where a checkpoint lies."""
    idle_expert_bytes: int = 0
    """Of ``layer_weight_bytes``: experts that decoding one token does not choose, on average."""
    workspace_bytes_per_token: float = 0.0
    """Scratch that grows with the pool: a chunk's and a step's rows score every token they may see."""
    graph_bytes_per_layer: int = 0
    """What captured steps take on a CUDA card."""
    forbidden_cuts: tuple[int, ...] = ()
    """Layers that must lie on the card of the layer before them: no card may begin there."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_weight_bytes)

    @property
    def decode_bytes(self) -> int:
        """Weights that decoding one token reads: the layers without idle experts, and the head.
        One row of the embedding is not counted."""
        head = self.embedding_bytes if self.tied_head else 0
        return sum(self.layer_weight_bytes) - self.idle_expert_bytes + self.head_bytes + head


@dataclass(frozen=True, slots=True)
class MemoryTerm:
    """One line of a card's accounting."""

    card: str
    name: str
    """weights, embedding, head, kv_pages, states, workspace, graphs, transfer, runtime …"""
    bytes: int
    quality: Quality = "exact"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Layers [first_layer, end_layer) on one card."""

    card: Card
    first_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool
    embedding_on_host: bool = False
    """The embedding table lies in pinned host memory, which the card's kernels read: a row a token."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete placement; the loader follows it and never probes by failing."""

    stages: tuple[StagePlan, ...]
    page_tokens: int
    chunk_tokens: int
    total_pages: int
    max_slots: int
    context_tokens: int
    terms: tuple[MemoryTerm, ...]

    def card_bytes(self, card: str) -> int:
        """Bytes planned on one card, all terms together."""
        return sum(term.bytes for term in self.terms if term.card == card)


def format_bytes(count: float) -> str:
    """Human-readable binary size: ``format_bytes(3 * GIB) == '3.00 GiB'``."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"
