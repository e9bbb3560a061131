"""The first steps of a new engine, taken before anybody waits: kernels compile, and a canary sings.

A broken kernel or a damaged card shows as logits that are not finite or as one token whatever the input; both
end the start with an error instead of a server that answers nonsense.
"""

from __future__ import annotations

from tandem.core.batch import MAX_ROWS_PER_RUN, Batch, Run, RunKind, SequenceSpec, StepResult
from tandem.core.errors import EngineFault
from tandem.core.protocols import StepEngine
from tandem.core.requests import SamplingParams

_MOST_PROBES = 8
"""Prompts of different tokens, until two different answers were seen: a healthy model needs one or two."""
_ROW_SIZES = (MAX_ROWS_PER_RUN, 8, 4, 2, 1)
"""Kernels are compiled for blocks of rows: each of these sizes may need one that the others do not."""
_ROWS = sum(_ROW_SIZES)
_STREAMS = (8, 4, 2)
"""The head's rows are the sequences of a step, so its blocks need several of them."""
_FIRST_COMPILE_S = 600.0


def warm_up(engine: StepEngine, vocab_size: int) -> None:
    """Run prefill and row steps of every size on slot 0, then steps of several sequences.

    Raises EngineFault with what was found.
    """
    step = _sing(engine, vocab_size)
    _run_side_by_side(engine, vocab_size, step)


def _sing(engine: StepEngine, vocab_size: int) -> int:
    """Different prompts must not all be answered by one token. Returns the number of steps taken."""
    limits = engine.limits
    room = limits.context_tokens - 1
    prompt_length = max(min(limits.chunk_tokens // 2, room - _ROWS), 1)
    pages = tuple(range(min(-(-(prompt_length + _ROWS) // limits.page_tokens), limits.total_pages)))
    seen: set[int] = set()
    step = 0
    for probe in range(_MOST_PROBES):
        prompt = tuple((7919 * (probe + 1) * (i + 1)) % vocab_size for i in range(prompt_length))
        engine.open_sequence(0, SequenceSpec(SamplingParams(temperature=0.0), prompt, prompt_length))
        run = Run(0, RunKind.PREFILL, prompt, 0, pages, sample=True)
        position = prompt_length
        for size in (*(_ROW_SIZES if probe == 0 else (1,)), 0):
            (token,) = _step(engine, step, (run,))
            step += 1
            seen.add(token)
            rows = min(size, room - position)
            if rows < 1 or position + rows > len(pages) * limits.page_tokens:
                break
            run = Run(0, RunKind.ROWS, (token,) * rows, position, pages, sample=True)
            position += rows
        engine.close_sequence(0)
        if len(seen) > 1:
            break
    if len(seen) == 1 and vocab_size > 1:
        raise EngineFault(
            "The engine's first answers make no sense",
            found=f"token {seen.pop()} after each of {_MOST_PROBES} different prompts",
            remedy="tandem models verify, and tandem doctor",
        )
    return step


def _run_side_by_side(engine: StepEngine, vocab_size: int, step: int) -> None:
    """A prompt of one token for each of several slots, then steps of all of them, of half, of a quarter."""
    limits = engine.limits
    slots = range(min(_STREAMS[0], limits.max_slots, limits.total_pages, limits.max_step_rows))
    if len(slots) < 2 or limits.context_tokens < len(_STREAMS) + 2:
        return
    for slot in slots:
        prompt = (slot % vocab_size,)
        engine.open_sequence(slot, SequenceSpec(SamplingParams(temperature=0.0), prompt, 1))
        _step(engine, step, (Run(slot, RunKind.PREFILL, prompt, 0, (slot,), sample=True),))
        step += 1
    for position, streams in enumerate(_STREAMS, 1):
        runs = (Run(slot, RunKind.ROWS, (0,), position, (slot,), sample=True) for slot in slots[:streams])
        _step(engine, step, tuple(runs))
        step += 1
    for slot in slots:
        engine.close_sequence(slot)


def _step(engine: StepEngine, number: int, runs: tuple[Run, ...]) -> tuple[int, ...]:
    """The first token sampled for each run."""
    result: StepResult = engine.submit(Batch(number, runs)).result(timeout=_FIRST_COMPILE_S)
    if result.faults:
        raise EngineFault(f"The engine's first step failed: {result.faults[0].message}")
    return tuple(sampled.tokens[0] for sampled in result.sampled)
