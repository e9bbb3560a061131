"""Sampling as its definition reads: whole-row sorts, float64, no short cuts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from tandem.core.requests import SamplingParams

Array = npt.NDArray[np.float64]


def processed(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> Array:
    row = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token, count in Counter(output).items():
        row[token] -= params.presence_penalty + params.frequency_penalty * count
    for token, bias in params.logit_bias:
        row[token] += bias if bias > -100 else -np.inf
    return row


def distribution(row: Array, params: SamplingParams) -> Array:
    """The probabilities that a token is drawn with, after temperature, min_p, top_k and top_p."""
    scaled = (row - row.max()) / params.temperature
    weights = np.exp(scaled)
    weights[weights < params.min_p * weights.max()] = 0.0
    order = np.lexsort((np.arange(len(row)), -row))
    if params.top_k:
        weights[order[params.top_k :]] = 0.0
    if params.top_p < 1.0:
        running = np.cumsum(weights[order]) / weights.sum()
        weights[order[int(np.searchsorted(running, params.top_p)) + 1 :]] = 0.0
    return weights / weights.sum()
