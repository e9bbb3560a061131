"""The only rule by which drafted tokens are accepted or rejected.

Row i holds the logits after the i-th drafted token. Row 0 is drawn from as if nothing had been drafted; while
what is drawn is what was drafted, the next row's logits are valid and its draw counts too::

    draft          d0    d1    d2
    rows     r0    r1    r2    r3
    drawn    d0 =  d1 =  x  ≠        -> accepted: d0 d1 x

Because a draw depends on (seed, output index) and its row alone, the output is that of plain decoding,
greedy or not, with every penalty, bias, filter and grammar in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandem.core.requests import TokenLogprob
from tandem.sampling.drawn import Drawn
from tandem.sampling.sequence import SequenceSampler


@dataclass(frozen=True, slots=True)
class Accepted:
    """At least one token; ``logprobs[i]`` belongs to ``tokens[i]``."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]


def verify(sampler: SequenceSampler, draws: Iterable[Drawn], draft: Sequence[int] = ()) -> Accepted:
    """Take in ``draws`` (len(draft) + 1 of them) while they equal ``draft``.

    Ends at a stop token too: nothing may follow it. Without a draft this is plain decoding of one row. A draw
    is looked at only once those before it are accepted. Raises what ``draws`` and ``accept`` raise.
    """
    tokens: list[int] = []
    logprobs: list[TokenLogprob | None] = []
    for i, drawn in enumerate(draws):
        sampler.accept(drawn.token)
        tokens.append(drawn.token)
        logprobs.append(drawn.logprob)
        if i == len(draft) or drawn.token != draft[i] or sampler.is_stop(drawn.token):
            break
    return Accepted(tuple(tokens), tuple(logprobs))
