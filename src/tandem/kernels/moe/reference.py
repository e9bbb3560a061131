"""The specification of expert routing and of the experts' activation, in plain torch, float32."""

from __future__ import annotations

import torch

from tandem.kernels.rowwise import sigmoid, silu


def route(
    logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    *,
    normalize: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose ``top_k`` experts a row: by σ(logit) + bias, weighted by σ(logit) alone.

    logits: [R, E], correction_bias: [E]. Returns (experts int64 [R, top_k] ascending, weights [R, top_k]).
    Ties go to the lower expert, so that a choice never depends on how a sort is implemented.
    """
    scores = sigmoid(logits)
    order = torch.sort(scores + correction_bias, dim=-1, descending=True, stable=True).indices
    experts = order[:, :top_k].sort(dim=-1).values
    weights = scores.gather(1, experts)
    if normalize:
        total = weights[:, 0]
        for i in range(1, top_k):
            total = total + weights[:, i]
        weights = weights / (total[:, None] + 1e-20)
    return experts, weights * scaling


def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float | None) -> torch.Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit); no limit, no clamp. gate, up: [R, F] → [R, F]."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return silu(gate) * up
