"""Rotation frequencies of rotary embeddings, with the ways of stretching them over a longer context.

No torch: a specification is checked with this before anything is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """``kind`` says which of the later fields count.

    Published "dynamic" scaling equals ``default`` up to the context the model was made for, and depends on
    the length of the whole sequence beyond it; so it is served as ``default`` within that context.
    """

    theta: float
    rotary_dim: int
    """Leading dimensions of a head that turn; even."""
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context_tokens: int = 0
    """llama3, yarn: the context before stretching."""
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    """llama3: wavelengths longer than context / low are stretched, shorter than context / high kept."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    """yarn: dimensions turning more often than fast in the context are kept, less than slow stretched."""
    truncate: bool = True
    """yarn: round the borders between the two to whole dimensions."""
    attention_factor: float = 1.0
    """Times cosine and sine."""


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """How much yarn sharpens attention, where the checkpoint does not say it outright."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return scale(mscale) / scale(mscale_all_dim)
    return scale(1.0)


def inverse_frequencies(rope: RopeSpec) -> tuple[float, ...]:
    """Radians per position for each of the rotary_dim / 2 pairs."""
    plain = [rope.theta ** (-2 * i / rope.rotary_dim) for i in range(rope.rotary_dim // 2)]
    if rope.kind == "linear":
        return tuple(value / rope.factor for value in plain)
    if rope.kind == "llama3":
        return tuple(_llama3(value, rope) for value in plain)
    if rope.kind == "yarn":
        return _yarn(plain, rope)
    return tuple(plain)


def _llama3(frequency: float, rope: RopeSpec) -> float:
    turns = rope.original_context_tokens * frequency / (2 * math.pi)
    if turns < rope.low_frequency_factor:
        return frequency / rope.factor
    if turns > rope.high_frequency_factor:
        return frequency
    span = rope.high_frequency_factor - rope.low_frequency_factor
    kept = (turns - rope.low_frequency_factor) / span
    return (1 - kept) * frequency / rope.factor + kept * frequency


def _yarn(plain: list[float], rope: RopeSpec) -> tuple[float, ...]:
    def dimension(turns: float) -> float:
        """The (fractional) pair number whose wave turns so often within the original context."""
        longest = rope.original_context_tokens / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(longest) / (2 * math.log(rope.theta))

    first, last = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    width = last - first or 0.001
    result = []
    for i, frequency in enumerate(plain):
        stretched = min(max((i - first) / width, 0.0), 1.0)
        result.append(stretched * frequency / rope.factor + (1 - stretched) * frequency)
    return tuple(result)
