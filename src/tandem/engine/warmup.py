"""One short sequence through a new engine, before the first request.

Kernels are compiled, memory is touched and threads are started here, so that nobody's first token waits for
it; and a model whose logits are not numbers is found out before the server says that it is ready.
"""

from __future__ import annotations

from tandem.core.batch import MAX_ROWS_PER_RUN, Batch, EngineLimits, Run, RunKind, SequenceSpec
from tandem.core.errors import EngineFault
from tandem.core.protocols import StepEngine
from tandem.core.requests import SamplingParams

TOKEN = 0


def warm_up(engine: StepEngine) -> None:
    """Compute one prompt chunk, then runs of 1, 2, 4, 8 and 16 rows, in slot 0.

    For an engine that nothing else drives yet: the pages used belong to nobody afterwards. Raises
    EngineFault if a step fails or cannot be sampled.
    """
    engine.open_sequence(0, SequenceSpec(SamplingParams(temperature=0.0), (TOKEN,), prompt_length=1))
    for step, run in enumerate(_runs(engine.limits)):
        result = engine.submit(Batch(step, (run,))).result()
        for fault in result.faults:
            raise EngineFault(f"The model cannot be sampled: {fault.message}")
    engine.close_sequence(0)


def _runs(limits: EngineLimits) -> list[Run]:
    pages = tuple(range(min(limits.total_pages, -(-2 * MAX_ROWS_PER_RUN // limits.page_tokens))))
    longest = min(limits.context_tokens, len(pages) * limits.page_tokens)
    runs = [Run(0, RunKind.PREFILL, (TOKEN,), 0, pages, sample=True)]
    rows, start = 1, 1
    while rows <= MAX_ROWS_PER_RUN and start + rows <= longest:
        runs.append(Run(0, RunKind.ROWS, (TOKEN,) * rows, start, pages, sample=True))
        rows, start = 2 * rows, start + rows
    return runs
