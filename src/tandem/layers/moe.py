"""Feed-forward sublayers: one gated MLP, or a mixture of many with a shared one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.kernels.moe import reference as moe
from tandem.layers.operator import Operator


@dataclass(frozen=True, slots=True)
class ClampedMlp:
    """down(silu(min(gate(x), limit)) · clamp(up(x), ±limit)). [R, hidden] → [R, hidden]."""

    gate: Operator
    up: Operator
    down: Operator
    limit: float | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(moe.clamped_swiglu(self.gate(x), self.up(x), self.limit))


class MoeLayer:
    """Routed experts plus shared ones. A row's sum over experts runs in ascending order of their numbers."""

    def __init__(
        self,
        router: Operator,
        correction_bias: torch.Tensor,
        experts: tuple[ClampedMlp, ...],
        shared: ClampedMlp | None,
        *,
        top_k: int,
        normalize: bool,
        scaling: float,
    ) -> None:
        """router: hidden → experts in float32; correction_bias: [experts] float32."""
        self._router = router
        self._correction_bias = correction_bias
        self._experts = experts
        self._shared = shared
        self._top_k = top_k
        self._normalize = normalize
        self._scaling = scaling

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, hidden] → [R, hidden]."""
        chosen, weights = moe.route(
            self._router(x),
            self._correction_bias,
            self._top_k,
            normalize=self._normalize,
            scaling=self._scaling,
        )
        total = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, choice = (chosen == expert).nonzero(as_tuple=True)
            total[rows] += self._experts[expert](x[rows]) * weights[rows, choice, None]
        return total if self._shared is None else total + self._shared(x)
