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
_FIRST_COMPILE_S = 600.0


def warm_up(engine: StepEngine, vocab_size: int) -> None:
    """Run prefill and row steps of every size on slot 0. Raises EngineFault with what was found."""
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
            token = _step(engine, step, run)
            step += 1
            seen.add(token)
            rows = min(size, room - position)
            if rows < 1 or position + rows > len(pages) * limits.page_tokens:
                break
            run = Run(0, RunKind.ROWS, (token,) * rows, position, pages, sample=True)
            position += rows
        engine.close_sequence(0)
        if len(seen) > 1:
            return
    if vocab_size > 1:
        raise EngineFault(
            "The engine's first answers make no sense",
            found=f"token {seen.pop()} after each of {_MOST_PROBES} different prompts",
            remedy="tandem models verify, and tandem doctor",
        )


def _step(engine: StepEngine, number: int, run: Run) -> int:
    result: StepResult = engine.submit(Batch(number, (run,))).result(timeout=_FIRST_COMPILE_S)
    if result.faults:
        raise EngineFault(f"The engine's first step failed: {result.faults[0].message}")
    return result.sampled[0].tokens[0]
