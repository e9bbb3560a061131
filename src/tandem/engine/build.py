"""Puts an engine together from loaded stages and the plan they were loaded by."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.core.batch import EngineLimits, most_step_rows
from tandem.core.plan import Card, Plan
from tandem.engine.budget import check_allocated, check_plan
from tandem.engine.buffers import StageBuffers
from tandem.engine.engine import Engine
from tandem.engine.stages import Stage
from tandem.engine.transfer import Entrance
from tandem.models.base import StageModel


def engine_limits(plan: Plan, *, state_checkpoints: int = 0) -> EngineLimits:
    """The numbers of a plan that scheduler and engine agree on."""
    return EngineLimits(
        page_tokens=plan.page_tokens,
        chunk_tokens=plan.chunk_tokens,
        total_pages=plan.total_pages,
        max_slots=plan.max_slots,
        max_step_rows=most_step_rows(plan.max_slots),
        context_tokens=plan.context_tokens,
        pipeline_depth=len(plan.stages),
        state_checkpoints=state_checkpoints,
    )


def build_engine(
    stage_models: Sequence[StageModel],
    plan: Plan,
    *,
    residual_width: int,
    vocab_size: int,
    state_checkpoints: int = 0,
    threads: int | None = None,
) -> Engine:
    """Start an engine whose stage i runs ``stage_models[i]`` on ``plan.stages[i].card``.

    ``residual_width`` and ``vocab_size`` are those of the ``ModelSpec``; ``threads`` are those of a stage's
    products (default: torch's own number), the same for every stage. ``budget.check_plan`` is for the time
    before the models are loaded; here it is repeated, and what was allocated is held against the plan.
    Raises BudgetError.
    """
    if len(stage_models) != len(plan.stages):
        raise ValueError(f"{len(stage_models)} stage models for a plan of {len(plan.stages)} stages")
    check_plan(plan)
    limits = engine_limits(plan, state_checkpoints=state_checkpoints)
    pinned = any(stage.card.kind == "cuda" for stage in plan.stages)
    rows = max(limits.chunk_tokens, limits.max_step_rows)
    stages: list[Stage] = []
    for index, (model, stage) in enumerate(zip(stage_models, plan.stages, strict=True)):
        device = card_device(stage.card)
        entrance = Entrance(rows, residual_width, device, pinned=pinned) if index else None
        buffers = StageBuffers(limits, device, model.step_memory)
        stages.append(Stage(index, stage, model, buffers, entrance))
    check_allocated(plan, (term for stage in stages for term in stage.memory()))
    return Engine(
        stages, limits, vocab_size=vocab_size, pinned=pinned, threads=threads or torch.get_num_threads()
    )


def card_device(card: Card) -> torch.device:
    """Virtual cards all live on the one CPU device."""
    return torch.device("cpu") if card.kind == "cpu" else torch.device(card.kind, card.index)
