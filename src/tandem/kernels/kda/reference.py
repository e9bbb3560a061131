"""The specification of Kimi delta attention (KDA), in plain torch, float32 throughout.

Alphabet: R rows (consecutive tokens of one sequence), H heads, K = V = head size, W taps of the convolution.

One head's state S [K, V] and one token (q, k, v, g, β)::

    S ← diag(exp g) · S                     decay per channel, g ≤ 0
    S ← S + k ⊗ β · (v − kᵀ S)              replace what S holds under k by a mix of it and v
    o = qᵀ S

``step`` does just that, row after row. ``chunked`` solves the rows of a block together: with G the running
sum of g inside the block, row i sees what the earlier rows j wrote, u_j, decayed by exp(G_i − G_j)::

    u_i = β_i (v_i − (k_i ∘ exp G_i)ᵀ S₀ − Σ_{j<i} A_ij u_j),   A_ij = Σ_c k_ic k_jc exp(G_ic − G_jc)

a unit lower triangular system. Differences of G are formed before the exponential, so that no decay, however
steep, overflows.
"""

from __future__ import annotations

import torch

from tandem.kernels.rowwise import sigmoid, silu, softplus

BLOCK_ROWS = 32
"""Rows solved together by ``chunked``: the pairwise decays take BLOCK_ROWS² · H · K floats."""
_NORM_EPS = 1e-6


def short_convolution(inputs: torch.Tensor, history: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Causal depthwise convolution of W taps, then SiLU.

    inputs: [R, C], history: [W−1, C] the inputs before them (zeros at a sequence's start), weight: [C, W],
    the last tap for the current row. Returns [R, C].
    """
    R, W = inputs.shape[0], weight.shape[1]
    rows = torch.cat((history, inputs))
    total = rows[:R] * weight[:, 0]
    for tap in range(1, W):
        total = total + rows[tap : tap + R] * weight[:, tap]
    return silu(total)


def decay(
    forget: torch.Tensor, dt_bias: torch.Tensor, a_log: torch.Tensor, lower_bound: float | None
) -> torch.Tensor:
    """Logarithm of each channel's decay, g ≤ 0.

    forget: [R, H, K], dt_bias: [H, K], a_log: [H]. With a lower bound g = bound · σ(exp(a) · (forget +
    bias)); without, g = −exp(a) · softplus(forget + bias).
    """
    rate = a_log.exp()[:, None]
    shifted = forget + dt_bias
    if lower_bound is not None:
        return lower_bound * sigmoid(rate * shifted)
    return -rate * softplus(shifted)


def normalize(x: torch.Tensor) -> torch.Tensor:
    """Each head's vector to unit length: x [R, H, K] / √(Σ x² + 1e-6)."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """One token: q, k, v, g [H, K] (q and k normalized), beta [H]. Updates ``state`` [H, K, V] in place.

    Returns the output [H, V].
    """
    state.mul_(g.exp()[:, :, None])
    held = (state * k[:, :, None]).sum(1)
    correction = (v - held) * beta[:, None]
    state.add_(k[:, :, None] * correction[:, None, :])
    output: torch.Tensor = (state * q[:, :, None]).sum(1) * q.shape[-1] ** -0.5
    return output


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """Many tokens: q, k, v, g [R, H, K] (q and k normalized), beta [R, H]. Updates ``state`` in place.

    Equal to R calls of ``step`` up to rounding. Rows with k, v, g and beta all zero leave the state as it is.
    Returns [R, H, V].
    """
    outputs = []
    for start in range(0, q.shape[0], BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        bq, bk, bv, bg = (x[rows].transpose(0, 1) for x in (q, k, v, g))
        outputs.append(_block(bq, bk, bv, bg, beta[rows].T, state))
    return torch.cat(outputs, dim=1).transpose(0, 1)


def _block(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> torch.Tensor:
    """One block, heads first: q, k, v, g [H, B, K], beta [H, B]. Returns [H, B, V]."""
    B = q.shape[1]
    total = g.cumsum(1)
    later = torch.ones(B, B, dtype=torch.bool).triu(1)
    difference = (total[:, :, None] - total[:, None]).masked_fill(later[:, :, None], -torch.inf)
    decayed_keys = k[:, None] * difference.exp()  # [H, i, j, K]: k_j as row i sees it
    overlap = (k[:, :, None] * decayed_keys).sum(-1).tril(-1) * beta[:, :, None]
    from_state = (k * total.exp()) @ state
    written = torch.linalg.solve_triangular(
        overlap + torch.eye(B), beta[:, :, None] * (v - from_state), upper=False, unitriangular=True
    )
    attention = (q[:, :, None] * decayed_keys).sum(-1)
    output: torch.Tensor = ((q * total.exp()) @ state + attention @ written) * q.shape[-1] ** -0.5
    to_end = k * (total[:, -1:] - total).exp()
    state.mul_(total[:, -1].exp()[:, :, None]).add_(to_end.transpose(1, 2) @ written)
    return output


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm of each head's output times σ(gate): x and gate [R, H, V], weight [V]. Returns [R, H, V]."""
    inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * inverse * weight * sigmoid(gate)
