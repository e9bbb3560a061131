"""Placement: which layers on which card, and whether they fit.

A card's bytes are the sum of its terms (DESIGN §7)::

    weights of its layers + embedding? + head? + pages · bytes per token of its layers
        + slots · state bytes of its layers + workspace of one chunk + captured graphs
        + page tables and rows of a step + transfer buffers + runtime

Layers stay in order, so a placement is a list of cuts. The best one leaves the tightest card the most room;
it is found exactly, by dynamic programming over (card, first layer not yet placed).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.core.batch import layout_bytes, most_step_rows
from tandem.core.errors import BudgetError, SettingsError
from tandem.core.plan import Card, MemoryTerm, ModelFootprint, Plan, StagePlan, format_bytes

_ENTRANCE_BUFFERS = {"cpu": 2, "cuda": 1}
"""Chunks of residual streams, or steps where longer, on a stage's card; pinned host buffers are not its."""

_DOUBT = {"exact": 0.0, "measured": 0.05, "estimated": 0.4}
"""Share by which a term may be off. Estimates of workspaces were within 40 % of the peer's own figures."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for. ``None`` leaves a choice to the planner."""

    context_tokens: int | None = None
    """Longest sequence; default the model's own context, or less if only less fits."""
    pool_tokens: int | None = None
    """Tokens all sequences share; default one full context."""
    max_slots: int = 8
    page_tokens: int = 64
    chunk_tokens: int = 128
    split: tuple[int, ...] | None = None
    """Layers per card, as the user wants them."""
    runtime_bytes: int = 0
    """Per card: driver context, allocator slack, code."""
    spare: int = 0
    """Slots, and pages, beyond those of sequences."""
    embedding_may_leave: bool = False
    """The embedding table moves to host memory where a CUDA card that should hold it may else be short."""
    drafter_bytes: int = 0
    """On the card of the head, whose logits the drafter shares."""


def place(footprint: ModelFootprint, cards: tuple[Card, ...], request: PlanRequest) -> Plan:
    """The plan that leaves most room on the tightest card.

    Raises BudgetError when it does not fit (naming the card that is short, by how much, and what would
    help) and SettingsError for a split that does not match the model.
    """
    _check_cards(footprint, cards)
    context = request.context_tokens or footprint.native_context_tokens
    if context > footprint.native_context_tokens:
        raise SettingsError(
            f"A context of {context:,} tokens was asked for",
            found=f"a model made for {footprint.native_context_tokens:,}",
            remedy=f"--context {footprint.native_context_tokens}",
        )
    if request.context_tokens is None:
        largest = max_context_tokens(footprint, cards, request)
        if largest >= request.chunk_tokens:
            context = min(context, largest)
    plan = best_effort_plan(footprint, cards, request, context)
    _refuse_if_short(footprint, plan, cards, request)
    return plan


def max_context_tokens(footprint: ModelFootprint, cards: tuple[Card, ...], request: PlanRequest) -> int:
    """The longest context that fits, a multiple of the chunk size or the model's own; 0 if none does."""
    chunk = request.chunk_tokens
    low, high = 0, -(-footprint.native_context_tokens // chunk)
    while low < high:
        middle = (low + high + 1) // 2
        plan = best_effort_plan(footprint, cards, request, middle * chunk)
        if _shortfall(plan, cards) is None:
            low = middle
        else:
            high = middle - 1
    return min(low * chunk, footprint.native_context_tokens)


def best_effort_plan(
    footprint: ModelFootprint, cards: tuple[Card, ...], request: PlanRequest, context_tokens: int
) -> Plan:
    """The best placement at one context length, whether it fits or not. Raises SettingsError."""
    _check_cards(footprint, cards)
    pool_tokens = max(request.pool_tokens or context_tokens, context_tokens)
    # A short last chunk is padded, so a sequence's pages are whole chunks.
    pages = -(-pool_tokens // request.chunk_tokens) * (request.chunk_tokens // request.page_tokens)
    plan = _placed(footprint, cards, request, pages, context_tokens, embedding_on_host=False)
    may_leave = request.embedding_may_leave and cards[0].kind == "cuda" and not footprint.tied_head
    if may_leave and any(high_bytes(plan, card.name) > card.budget_bytes for card in cards):
        return _placed(footprint, cards, request, pages, context_tokens, embedding_on_host=True)
    return plan


def doubt_bytes(plan: Plan, card: str) -> float:
    """By how much what is planned on a card may be off, if every term is."""
    return sum(term.bytes * _DOUBT[term.quality] for term in plan.terms if term.card == card)


def high_bytes(plan: Plan, card: str) -> int:
    """What is planned on a card, if every term is as much more as it may be."""
    return round(plan.card_bytes(card) + doubt_bytes(plan, card))


def _placed(
    footprint: ModelFootprint,
    cards: tuple[Card, ...],
    request: PlanRequest,
    pages: int,
    context_tokens: int,
    *,
    embedding_on_host: bool,
) -> Plan:
    empty = tuple(
        StagePlan(
            card,
            0,
            0,
            has_embedding=i == 0,
            has_head=i == len(cards) - 1,
            embedding_on_host=embedding_on_host and i == 0,
        )
        for i, card in enumerate(cards)
    )
    cuts = _manual_cuts(footprint, cards, request) or _best_cuts(
        footprint, empty, request, pages, context_tokens
    )
    stages = tuple(
        replace(stage, first_layer=first, end_layer=end)
        for stage, first, end in zip(empty, cuts, cuts[1:], strict=False)
    )
    terms = tuple(
        term for stage in stages for term in stage_terms(footprint, stage, request, pages, context_tokens)
    )
    return Plan(
        stages=stages,
        page_tokens=request.page_tokens,
        chunk_tokens=request.chunk_tokens,
        total_pages=pages,
        max_slots=request.max_slots,
        context_tokens=context_tokens,
        terms=terms,
    )


def _check_cards(footprint: ModelFootprint, cards: tuple[Card, ...]) -> None:
    if not cards:
        raise SettingsError("No cards were given", remedy="--cards cpu:1")
    if len(cards) > footprint.num_layers:
        raise SettingsError(
            f"{len(cards)} cards were asked for",
            found=f"a model of {footprint.num_layers} layers",
            remedy=f"--cards with at most {footprint.num_layers}",
        )
    places = _allowed_cuts(footprint)
    if len(places) < len(cards) - 1:
        raise SettingsError(
            f"{len(cards)} cards were asked for",
            found=f"a model with {len(places)} place(s) to cut: layers that share a selection stay together",
            remedy=f"--cards with at most {len(places) + 1}",
        )


def _allowed_cuts(footprint: ModelFootprint) -> list[int]:
    """Layers at which a second or later card may begin."""
    forbidden = set(footprint.forbidden_cuts)
    return [layer for layer in range(1, footprint.num_layers) if layer not in forbidden]


def stage_terms(
    footprint: ModelFootprint,
    stage: StagePlan,
    request: PlanRequest,
    pages: int,
    context_tokens: int,
) -> list[MemoryTerm]:
    """Every term of one stage's card."""
    layers = range(stage.first_layer, stage.end_layer)
    name = stage.card.name
    tokens = pages * request.page_tokens
    kept_tokens, slots = _kept(request, pages)
    weights = sum(footprint.layer_weight_bytes[i] for i in layers)
    kv = sum(footprint.layer_cache[i].bytes_per_token for i in layers) * kept_tokens
    states = sum(footprint.layer_cache[i].bytes_per_sequence for i in layers) * slots
    terms = [MemoryTerm(name, "weights", weights), MemoryTerm(name, "kv_pages", round(kv))]
    if states:
        terms.append(MemoryTerm(name, "states", states))
    needs_table = stage.has_embedding or (stage.has_head and footprint.tied_head)
    if needs_table and not stage.embedding_on_host:
        terms.append(MemoryTerm(name, "embedding", footprint.embedding_bytes))
    if stage.has_head:
        terms.append(MemoryTerm(name, "head", footprint.head_bytes))
        terms.append(MemoryTerm(name, "drafter", request.drafter_bytes))
    workspace = footprint.workspace_bytes + round(footprint.workspace_bytes_per_token * tokens)
    terms.append(MemoryTerm(name, "workspace", workspace, "estimated"))
    graphs = footprint.graph_bytes_per_layer * len(layers)
    terms.append(MemoryTerm(name, "graphs", graphs, "estimated"))
    layout = layout_bytes(request.max_slots, context_tokens, request.chunk_tokens, request.page_tokens)
    terms.append(MemoryTerm(name, "layout", layout))
    if not stage.has_embedding:
        rows = max(request.chunk_tokens, most_step_rows(request.max_slots))
        buffer_bytes = footprint.residual_bytes_per_token * rows
        terms.append(MemoryTerm(name, "transfer", buffer_bytes * _ENTRANCE_BUFFERS[stage.card.kind]))
    if request.runtime_bytes:
        terms.append(MemoryTerm(name, "runtime", request.runtime_bytes, "estimated"))
    return [term for term in terms if term.bytes]


def _kept(request: PlanRequest, pages: int) -> tuple[int, int]:
    """Tokens and slots that caches hold, spare ones included."""
    return (pages + request.spare) * request.page_tokens, request.max_slots + request.spare


def _manual_cuts(
    footprint: ModelFootprint, cards: tuple[Card, ...], request: PlanRequest
) -> list[int] | None:
    if request.split is None:
        return None
    split = request.split
    if len(split) != len(cards) or sum(split) != footprint.num_layers or min(split) < 1:
        raise SettingsError(
            f"--split {','.join(map(str, split))}",
            found=f"{len(cards)} card(s) and {footprint.num_layers} layers",
            remedy="one number of layers (at least 1) for each card, adding up to all layers",
        )
    cuts = [0]
    for layers in split:
        cuts.append(cuts[-1] + layers)
    refused = sorted(set(cuts[1:-1]) & set(footprint.forbidden_cuts))
    if refused:
        allowed = _allowed_cuts(footprint)
        near = sorted(sorted(allowed, key=lambda layer: abs(layer - refused[0]))[:4])
        raise SettingsError(
            f"--split {','.join(map(str, split))} begins a card at layer {refused[0]}",
            found="a layer that uses the selection of a layer before it, on the same card",
            remedy=f"begin cards elsewhere, nearest at layer {', '.join(map(str, near))}; or no --split",
        )
    return cuts


def _best_cuts(
    footprint: ModelFootprint,
    empty: tuple[StagePlan, ...],
    request: PlanRequest,
    pages: int,
    context_tokens: int,
) -> list[int]:
    """Cuts that maximise the smallest share of room left on any card; ``empty``: stages without layers."""
    num_layers, num_cards = footprint.num_layers, len(empty)
    allowed = _allowed_cuts(footprint)
    tokens, slots = _kept(request, pages)
    # Prefix sums make a card's bytes a difference: levers ask for thousands of placements a second.
    held = [0.0]
    for weights, cache in zip(footprint.layer_weight_bytes, footprint.layer_cache, strict=True):
        layer_bytes = cache.bytes_per_token * tokens + cache.bytes_per_sequence * slots
        held.append(held[-1] + weights + layer_bytes + footprint.graph_bytes_per_layer)
    fixed = [
        sum(term.bytes for term in stage_terms(footprint, stage, request, pages, context_tokens))
        for stage in empty
    ]

    def room(card_index: int, first: int, end: int) -> float:
        budget = max(empty[card_index].card.budget_bytes, 1)
        return 1 - (held[end] - held[first] + fixed[card_index]) / budget

    # best[first] = (smallest room over the cards from this one on, end of this card's layers)
    best: list[list[tuple[float, int]]] = [[] for _ in range(num_cards)]
    for card in reversed(range(num_cards)):
        cards_after = num_cards - card - 1
        row: list[tuple[float, int]] = []
        for first in range(num_layers + 1):
            options = [(float("-inf"), num_layers)]
            if card == num_cards - 1:
                if first < num_layers:
                    options.append((room(card, first, num_layers), num_layers))
            else:
                options.extend(
                    (min(room(card, first, end), best[card + 1][end][0]), end)
                    for end in allowed
                    if first < end <= num_layers - cards_after
                )
            row.append(max(options))
        best[card] = row
    cuts = [0]
    for card in range(num_cards):
        cuts.append(best[card][cuts[-1]][1])
    return cuts


def _shortfall(plan: Plan, cards: tuple[Card, ...]) -> tuple[Card, int] | None:
    """The card that is short of most bytes, and by how many."""
    worst = max(cards, key=lambda card: plan.card_bytes(card.name) - card.budget_bytes)
    missing = plan.card_bytes(worst.name) - worst.budget_bytes
    return (worst, missing) if missing > 0 else None


def _refuse_if_short(
    footprint: ModelFootprint, plan: Plan, cards: tuple[Card, ...], request: PlanRequest
) -> None:
    short = _shortfall(plan, cards)
    if short is None:
        return
    card, missing = short
    terms = sorted((t for t in plan.terms if t.card == card.name), key=lambda t: -t.bytes)
    parts = ", ".join(f"{t.name} {format_bytes(t.bytes)}" for t in terms[:4])
    largest = max_context_tokens(footprint, cards, replace(request, pool_tokens=None))
    if largest >= request.chunk_tokens:
        remedy = f"--context {largest}, the largest that fits"
    else:
        shortest = best_effort_plan(footprint, cards, request, request.chunk_tokens)
        where, lacking = _shortfall(shortest, cards) or (card, missing)
        remedy = (
            f"more or larger cards: even the shortest context lacks {format_bytes(lacking)} on {where.name}"
        )
    raise BudgetError(
        f"{format_bytes(plan.card_bytes(card.name))} are needed on {card.name} "
        f"for a context of {plan.context_tokens:,} tokens ({parts})",
        found=f"a budget of {format_bytes(card.budget_bytes)}, {format_bytes(missing)} short",
        remedy=remedy,
    )
