"""ROWS of one step: the next token of every running stream, and replay after preemption."""

from __future__ import annotations

from collections.abc import Sequence as Sized

from tandem.core.batch import MAX_ROWS_PER_RUN, EngineLimits, Run
from tandem.scheduler.memory import Secure, SequenceMemory
from tandem.scheduler.sequence import Sequence, least_recent_first


def plan_rows(
    running: Sized[Sequence],
    memory: SequenceMemory,
    secure: Secure,
    limits: EngineLimits,
    *,
    step: int,
) -> list[tuple[Sequence, Run]]:
    """Rows for this step's share of the decoding sequences, the longest unserved first.

    With several stages the sequences are split over the batches in flight, so that every stage has one
    to work on. Every chosen sequence gets a row before one that replays gets more (up to 16).
    """
    decoding = [s for s in running if not s.in_prompt and not s.leaving]
    share = min(-(-len(decoding) // limits.pipeline_depth), limits.max_step_rows)
    ready = least_recent_first(s for s in decoding if s.backlog)
    planned: list[tuple[Sequence, Run]] = []
    budget = limits.max_step_rows
    for position, sequence in enumerate(ready):
        if len(planned) == share:
            break
        if sequence.leaving or sequence.slot < 0:
            continue
        others = min(share - len(planned), len(ready) - position) - 1
        rows = memory.cut_rows(sequence, min(sequence.backlog, MAX_ROWS_PER_RUN, budget - others))
        end = sequence.scheduled + rows
        if secure(sequence, end):
            number = memory.checkpoint_for(sequence, end)
            planned.append((sequence, sequence.take_run((step, len(planned)), rows, number)))
            budget -= rows
    return planned
