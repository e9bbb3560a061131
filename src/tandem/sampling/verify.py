"""The only rule by which drafted tokens are accepted or rejected.

Row i holds the logits after the i-th drafted token. The sampler draws from row 0 as if nothing had been
drafted; while what it draws is what was drafted, the next row's logits are valid and it draws again::

    draft          d0    d1    d2
    rows     r0    r1    r2    r3
    drawn    d0 =  d1 =  x  ≠        -> accepted: d0 d1 x

Because a draw depends on (seed, output index) and its row alone, the output is that of plain decoding,
greedy or not, with every penalty, bias, filter and grammar in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.requests import TokenLogprob
from tandem.sampling.select import Row
from tandem.sampling.sequence import SequenceSampler


@dataclass(frozen=True, slots=True)
class Accepted:
    """At least one token; ``logprobs[i]`` belongs to ``tokens[i]``."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]


def verify(sampler: SequenceSampler, rows: Sequence[Row], draft: Sequence[int] = ()) -> Accepted:
    """Draw from ``rows`` (len(draft) + 1 of [V], raw logits) while the draws equal ``draft``.

    Ends at a stop token too: nothing may follow it. Without a draft this is plain decoding of one row.
    Raises what ``SequenceSampler.next_token`` raises.
    """
    tokens: list[int] = []
    logprobs: list[TokenLogprob | None] = []
    for i, row in enumerate(rows):
        token, logprob = sampler.next_token(row)
        tokens.append(token)
        logprobs.append(logprob)
        if i == len(draft) or token != draft[i] or sampler.is_stop(token):
            break
    return Accepted(tuple(tokens), tuple(logprobs))
