"""One layer of the trunk: attention and feed-forward, each between the residual streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.kernels.hyper_connection import reference as mhc
from tandem.layers.hyper_connection import HyperConnection
from tandem.layers.kda import KdaLayer
from tandem.layers.mla import MlaLayer, Selection
from tandem.layers.moe import ClampedMlp, MoeLayer
from tandem.layers.operator import Operator


@dataclass(frozen=True, slots=True)
class Block:
    """R rows, S streams of D values."""

    attention_site: HyperConnection
    attention_norm: Operator
    attention: KdaLayer | MlaLayer
    feed_forward_site: HyperConnection
    feed_forward_norm: Operator
    feed_forward: ClampedMlp | MoeLayer

    def forward_prefill(
        self, streams: torch.Tensor, layout: PrefillLayout, selection: Selection | None
    ) -> tuple[torch.Tensor, Selection | None]:
        """[C, S, D] → [C, S, D], and the selection for layers that share it."""

        def attend(x: torch.Tensor) -> torch.Tensor:
            nonlocal selection
            if isinstance(self.attention, KdaLayer):
                return self.attention.forward_prefill(x, layout)
            y, selection = self.attention.forward_prefill(x, layout, selection)
            return y

        return self._sublayers(streams, attend), selection

    def forward_rows(
        self, streams: torch.Tensor, layout: RowsLayout, selection: Selection | None
    ) -> tuple[torch.Tensor, Selection | None]:
        """[R, S, D] → [R, S, D], and the selection for layers that share it."""

        def attend(x: torch.Tensor) -> torch.Tensor:
            nonlocal selection
            if isinstance(self.attention, KdaLayer):
                return self.attention.forward_rows(x, layout)
            y, selection = self.attention.forward_rows(x, layout, selection)
            return y

        return self._sublayers(streams, attend), selection

    def _sublayers(self, streams: torch.Tensor, attend: Operator) -> torch.Tensor:
        streams = _around(self.attention_site, self.attention_norm, attend, streams)
        return _around(self.feed_forward_site, self.feed_forward_norm, self.feed_forward, streams)


def _around(site: HyperConnection, norm: Operator, sublayer: Operator, streams: torch.Tensor) -> torch.Tensor:
    weights = site.coefficients(streams)
    output = sublayer(norm(mhc.collapse(streams, weights.pre)))
    return mhc.expand(streams, output, weights)
