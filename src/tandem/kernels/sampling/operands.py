"""What is asked of a row of logits and what comes back; numpy only.

Alphabet: V vocabulary, N tokens concerned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.core.requests import SamplingParams

Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WEIGHT_BITS = 44
"""The peak's weight is 2^44, so that the weights of 2^19 tokens sum below 2^64."""
MOST_TOKENS = 1 << 19
MOST_LOGPROBS = 20
LOG2_E = np.float32(math.log2(math.e))
"""Octaves of weight that a logit is worth at temperature 1."""


def no_ids() -> Ids:
    return np.zeros(0, dtype=np.int64)


def no_amounts() -> Row:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Edits:
    """What changes a row before it is drawn from, in this order. Ids are distinct within each field and lie
    within the vocabulary; arrays are views, valid until the sequence takes its next token.
    """

    seen: Ids = field(default_factory=no_ids)
    """Tokens of prompt and output, whose positive logits are divided by ``penalty``, others multiplied."""
    penalty: float = 1.0
    output: Ids = field(default_factory=no_ids)
    """Tokens of the output."""
    output_minus: Row = field(default_factory=no_amounts)
    """What is taken from each of ``output``."""
    biased: Ids = field(default_factory=no_ids)
    bias: Row = field(default_factory=no_amounts)
    """What is added to each of ``biased``; −inf forbids it."""
    held: Ids = field(default_factory=no_ids)
    """Stop tokens that must wait, unless a mask leaves nothing else."""

    @property
    def count(self) -> int:
        return len(self.seen) + len(self.output) + len(self.biased) + len(self.held)


def is_greedy(params: SamplingParams) -> bool:
    """The best token is wanted, the lowest id of equals."""
    return params.temperature <= 0.0 or params.top_k == 1


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One draw, wherever it is made: nothing else about the sequence changes it."""

    params: SamplingParams
    """Temperature, filters and logprobs; penalties and bias are in ``edits`` already."""
    point: float
    """Where in 0..1 of the survivors' weight the token lies."""
    edits: Edits | None = None
    mask: bytes | None = None
    """Token i is allowed if bit i%8 of byte i//8 is set; those beyond the mask are forbidden."""

    @property
    def greedy(self) -> bool:
        return is_greedy(self.params)

    @property
    def tempering(self) -> np.float32:
        """Octaves of weight that a logit is worth."""
        return np.float32(math.log2(math.e) / min(max(self.params.temperature, 1e-30), 1e30))

    @property
    def reach(self) -> np.float32:
        """min_p as a distance from the best logit, ≤ 0."""
        if self.params.min_p <= 0.0:
            return np.float32(-np.inf)
        with np.errstate(over="ignore"):
            return np.float32(self.params.temperature * math.log(min(self.params.min_p, 1.0)))


def most_edits(vocab_size: int) -> int:
    """What one row can have at worst: every token in each of the four fields."""
    return 4 * vocab_size


def fraction(part: float) -> int:
    """0 ≤ ``part`` < 1 as a multiple of 2^-64."""
    return int(part * 2.0**64)


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """The raw distribution of a row, before its edits, at temperature 1."""

    peak: float
    total: int
    """Sum of all tokens' weights, 2^44 each at the peak."""
    logit: float
    """Of the drawn token."""
    top: tuple[tuple[int, float], ...]
    """The best tokens and their logits, best first, lowest id first among equals."""

    @property
    def log_total(self) -> float:
        """What logits lie above their natural-log probabilities."""
        return self.peak + math.log(self.total) - WEIGHT_BITS * math.log(2.0)


@dataclass(frozen=True, slots=True)
class RowResult:
    """A token, or why there is none."""

    token: int
    """−1: logits are not finite, or the edits and the mask forbid every token."""
    not_finite: int = 0
    """Logits that are NaN or infinite."""
    threshold: int = 0
    """Drawn from: tokens whose key (``reference.keys_of``) is above it …"""
    last_tie: int = -1
    """… and those that equal it, up to this id. Greedy rows draw from nothing."""
    logprobs: RawLogprobs | None = None
