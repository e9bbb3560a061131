"""A drawn token, whoever drew it, and what there can be instead."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.errors import RequestError, TandemError
from tandem.core.requests import TokenLogprob
from tandem.kernels.sampling.operands import RowResult


@dataclass(frozen=True, slots=True)
class Drawn:
    token: int
    logprob: TokenLogprob | None = None


def drawn_by_kernel(result: RowResult, vocab_size: int) -> Drawn:
    """The kernel's answer. Raises TandemError if the logits are not finite or nothing is left to sample."""
    if result.not_finite:
        raise not_finite(result.not_finite, vocab_size)
    if result.token < 0:
        raise nothing_left()
    raw = result.logprobs
    if raw is None:
        return Drawn(result.token)
    log_total = raw.log_total
    top = tuple((token, logit - log_total) for token, logit in raw.top)
    return Drawn(result.token, TokenLogprob(result.token, raw.logit - log_total, top))


def not_finite(bad: int, vocab_size: int) -> TandemError:
    return TandemError("The model's logits are not finite", found=f"{bad} of {vocab_size} are NaN or inf")


def nothing_left() -> RequestError:
    return RequestError(
        "No token is left to sample",
        found="logit_bias, min_tokens and the response format forbid all of them together",
        remedy="allow some token",
    )
