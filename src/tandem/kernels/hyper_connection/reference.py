"""The specification of hyper-connections, in plain torch, float32 throughout.

Alphabet: R rows, S streams, D width. Around a sublayer f with streams X [S, D]::

    w = Linear(X / rms(X))                          (2 + S)·S coefficients, one Linear over S·D inputs
    pre  = σ(w · scale₀ + base) + ε                 [S]     how the streams enter the sublayer
    post = 2 σ(w · scale₁ + base)                   [S]     how its output enters each stream
    mix  = Sinkhorn(softmax(w · scale₂ + base) + ε) [S, S]  how old streams enter new ones: X' = mixᵀ X
    X ← mixᵀ X + post ⊗ f(pre · X)

Sinkhorn makes ``mix`` doubly stochastic by dividing columns and rows by their sums in turn. ``base`` and
``scale`` must be float32: bfloat16 constants visibly damage a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.kernels.rowwise import sigmoid


@dataclass(frozen=True, slots=True)
class MixCoefficients:
    pre: torch.Tensor
    """[R, S]"""
    post: torch.Tensor
    """[R, S]"""
    mix: torch.Tensor
    """[R, S (old), S (new)]"""


def normalize_streams(streams: torch.Tensor, norm_eps: float) -> torch.Tensor:
    """All streams of a row as one vector of unit root mean square: [R, S, D] → [R, S·D]."""
    flat = streams.flatten(1)
    return flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)


def coefficients(
    projected: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, sinkhorn_iterations: int, eps: float
) -> MixCoefficients:
    """projected: [R, (2+S)·S] the Linear of the normalized streams; scale: [3], base: [(2+S)·S], all
    float32.
    """
    S = round((1 + projected.shape[-1]) ** 0.5) - 1
    R = projected.shape[0]
    pre, post, mix = projected.split((S, S, S * S), dim=-1)
    base_pre, base_post, base_mix = base.split((S, S, S * S))
    raised = mix * scale[2] + base_mix
    raised = torch.exp(raised.view(R, S, S) - raised.view(R, S, S).amax(-1, keepdim=True))
    mix = raised / raised.sum(-1, keepdim=True) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(sinkhorn_iterations - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return MixCoefficients(
        pre=sigmoid(pre * scale[0] + base_pre) + eps,
        post=2 * sigmoid(post * scale[1] + base_post),
        mix=mix,
    )


def collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """The sublayer's input: Σ_s pre_s X_s, [R, S, D] → [R, D]."""
    total = pre[:, 0, None] * streams[:, 0]
    for s in range(1, streams.shape[1]):
        total = total + pre[:, s, None] * streams[:, s]
    return total


def expand(streams: torch.Tensor, output: torch.Tensor, weights: MixCoefficients) -> torch.Tensor:
    """The streams after a sublayer: mixᵀ X + post ⊗ output. output: [R, D]. Returns a new [R, S, D]."""
    total = weights.post[:, :, None] * output[:, None]
    for s in range(streams.shape[1]):
        total = total + weights.mix[:, s, :, None] * streams[:, s, None]
    return total


def mean_streams(streams: torch.Tensor) -> torch.Tensor:
    """The plain mean over streams that ends the stack: [R, S, D] → [R, D]."""
    total = streams[:, 0]
    for s in range(1, streams.shape[1]):
        total = total + streams[:, s]
    return total / streams.shape[1]
