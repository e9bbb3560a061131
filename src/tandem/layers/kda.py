"""Kimi delta attention over recurrent slots: prefill chunks, and rows that commit lazily."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.cache.recurrent import RecurrentSlots, SlotView
from tandem.kernels.kda import reference as kda
from tandem.kernels.rowwise import sigmoid
from tandem.layers.operator import Operator


@dataclass(frozen=True, slots=True)
class KdaWeights:
    qkv: tuple[Operator, ...]
    """Queries, keys and values of all heads, in this order: one fused matrix or three."""
    conv: torch.Tensor
    """[3·H·K, W] float32."""
    forget_down: Operator
    forget_up: Operator
    mixing: Operator
    gate_down: Operator
    gate_up: Operator
    a_log: torch.Tensor
    """[H] float32."""
    dt_bias: torch.Tensor
    """[H, K] float32."""
    out_norm: torch.Tensor
    """[K] float32."""
    out: Operator


@dataclass(frozen=True, slots=True)
class _Projected:
    """What a row brings along: [R, 3·H·K], [R, H, K], [R, H], [R, H, K]."""

    qkv: torch.Tensor
    forget: torch.Tensor
    mixing: torch.Tensor
    gate: torch.Tensor


class KdaLayer:
    """One layer's weights and slots. R rows, H heads of K values, W taps of the convolution."""

    def __init__(
        self, weights: KdaWeights, slots: RecurrentSlots, *, lower_bound: float | None, norm_eps: float
    ) -> None:
        self.slots = slots
        self._weights = weights
        self._lower_bound = lower_bound
        self._norm_eps = norm_eps

    def forward_prefill(self, x: torch.Tensor, layout: PrefillLayout) -> torch.Tensor:
        """[C, hidden] → [C, hidden]. Rows at and after ``layout.length`` leave no trace in the slot."""
        self._commit(layout.slot, layout.start)
        slot = self.slots.view(layout.slot)
        rows = self._project(x)
        q, k, v = self._convolve(rows.qkv, slot.history)
        g, beta = self._gates(rows.forget, rows.mixing)
        for values in (k, v, g, beta):
            values[layout.length :] = 0
        output = kda.chunked(q, k, v, g, beta, slot.state)
        slot.history.copy_(self._history(slot.history, rows.qkv[: layout.length]))
        self.slots.commit(layout.slot, layout.start + layout.length)
        return self._finish(output, rows.gate)

    def forward_rows(self, x: torch.Tensor, layout: RowsLayout) -> torch.Tensor:
        """[R, hidden] → [R, hidden]. The rows stay pending: the next step of their sequence keeps some."""
        rows = self._project(x)
        g, beta = self._gates(rows.forget, rows.mixing)
        pending = torch.cat((rows.qkv, g.flatten(1), beta), dim=1)
        output = torch.empty_like(g)
        bounds = layout.run_starts.tolist()
        for run, slot_number in enumerate(layout.slots.tolist()):
            start = int(layout.positions[bounds[run]])
            self._commit(slot_number, start)
            slot = self.slots.view(slot_number)
            # The state that the pending rows see is not kept: it would cost a copy per row to be able to
            # reject.
            state, history = slot.state.clone(), slot.history
            first, end = bounds[run], bounds[run + 1]
            for row in range(first, end):
                one = slice(row, row + 1)
                output[row] = self._step(rows.qkv[one], history, g[one], beta[one], state)
                history = self._history(history, rows.qkv[one])
            slot.pending[: end - first] = pending[first:end]
            self.slots.commit(slot_number, start, end - first)
        return self._finish(output, rows.gate)

    def _project(self, x: torch.Tensor) -> _Projected:
        w, shape = self._weights, self.slots.shape
        heads = (x.shape[0], shape.heads, shape.head_dim)
        return _Projected(
            qkv=torch.cat([linear(x) for linear in w.qkv], dim=1),
            forget=w.forget_up(w.forget_down(x)).view(heads),
            mixing=w.mixing(x),
            gate=w.gate_up(w.gate_down(x)).view(heads),
        )

    def _gates(self, forget: torch.Tensor, mixing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log decays [R, H, K] and mixing rates [R, H]."""
        g = kda.decay(forget, self._weights.dt_bias, self._weights.a_log, self._lower_bound)
        return g, sigmoid(mixing)

    def _convolve(self, qkv: torch.Tensor, history: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries and keys of unit length, and values: each [R, H, K]."""
        shape = self.slots.shape
        mixed = kda.short_convolution(qkv, history, self._weights.conv)
        q, k, v = mixed.view(qkv.shape[0], 3, shape.heads, shape.head_dim).unbind(1)
        return kda.normalize(q), kda.normalize(k), v

    def _step(
        self,
        qkv: torch.Tensor,
        history: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        state: torch.Tensor,
    ) -> torch.Tensor:
        q, k, v = self._convolve(qkv, history)
        return kda.step(q[0], k[0], v[0], g[0], beta[0], state)

    def _finish(self, output: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = kda.gated_norm(output, gate, self._weights.out_norm, self._norm_eps)
        return self._weights.out(normed.flatten(1))

    @staticmethod
    def _history(history: torch.Tensor, qkv: torch.Tensor) -> torch.Tensor:
        """The last W−1 convolution inputs after these rows."""
        return torch.cat((history, qkv))[qkv.shape[0] :]

    def _commit(self, slot_number: int, start: int) -> None:
        """Fold the pending rows before ``start`` into the state; the others were rejected."""
        accepted = self.slots.accepted_rows(slot_number, start)
        slot: SlotView = self.slots.view(slot_number)
        shape = self.slots.shape
        sizes = [shape.channels, shape.heads * shape.head_dim, shape.heads]
        for i in range(accepted):
            qkv, g, beta = torch.split(slot.pending[i : i + 1], sizes, dim=1)
            self._step(qkv, slot.history, g.view(1, shape.heads, shape.head_dim), beta, slot.state)
            slot.history.copy_(self._history(slot.history, qkv))
        self.slots.commit(slot_number, start)
