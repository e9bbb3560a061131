"""Token embeddings from a tiled table, on the CPU."""

from __future__ import annotations

import numpy as np

from tandem.kernels.embedding import cpu
from tandem.quant.base import TiledWeight


class Embedding:
    """Rows of a table [V, H]; a tied head's Linear holds the same TiledWeight."""

    def __init__(self, table: TiledWeight) -> None:
        self.table = table

    def forward(self, token_ids: np.ndarray) -> np.ndarray:
        """int64 [M], each in 0..V-1, -> float32 [M, H]."""
        out = np.empty((token_ids.size, self.table.in_features), np.float32)
        cpu.embed(token_ids, self.table.values, self.table.scale, self.table.minimum, out)
        return out
