"""Prompt chunks of one step: cut on the absolute grid, one sequence after the other in turn."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.core.batch import Run
from tandem.scheduler.memory import Secure, SequenceMemory
from tandem.scheduler.sequence import Sequence, least_recent_first


def plan_chunks(
    running: Iterable[Sequence],
    memory: SequenceMemory,
    secure: Secure,
    claims: set[int],
    *,
    step: int,
    chunk_tokens: int,
    max_chunks: int,
) -> list[tuple[Sequence, Run]]:
    """At most ``max_chunks`` chunks, each of another sequence, the longest unserved first.

    A short prompt behind a long one thus waits for one chunk of it, not for all. A sequence whose next
    chunk another one is computing right now waits for that one and then shares it: ``claims`` holds the
    keys of such chunks in flight, and gets those of the chunks planned here.
    """
    planned: list[tuple[Sequence, Run]] = []
    for sequence in least_recent_first(s for s in running if s.in_prompt):
        if len(planned) == max_chunks:
            break
        if sequence.leaving or sequence.slot < 0:
            continue
        memory.adopt(sequence)
        if _awaits_claim(sequence, claims, chunk_tokens):
            continue
        end = min(sequence.scheduled + chunk_tokens, sequence.prompt_length)
        if not secure(sequence, end):
            continue
        number = memory.checkpoint_for(sequence, end)
        run = sequence.take_run((step, len(planned)), end - sequence.scheduled, number)
        planned.append((sequence, run))
        if memory.can_be_adopted(sequence, run):
            claims.add(_chunk_key(sequence, run.start // chunk_tokens, chunk_tokens))
    return planned


def _chunk_key(sequence: Sequence, depth: int, chunk_tokens: int) -> int:
    """Stands for the prompt up to the end of the chunk at ``depth``. Two prompts may share a key by
    accident; then one waits a step for nothing."""
    keys = sequence.chunk_keys
    while len(keys) <= depth:
        start = len(keys) * chunk_tokens
        chunk = sequence.request.prompt_tokens[start : start + chunk_tokens]
        keys.append(hash((keys[-1] if keys else 0, chunk)))
    return keys[depth]


def _awaits_claim(sequence: Sequence, claims: set[int], chunk_tokens: int) -> bool:
    """Whether the next chunk is in flight for another sequence and can be shared when it returns."""
    if not claims or sequence.node is None or not sequence.node.attached:
        return False
    depth = sequence.scheduled // chunk_tokens
    if depth >= (sequence.prompt_length - 1) // chunk_tokens:
        return False
    return _chunk_key(sequence, depth, chunk_tokens) in claims
