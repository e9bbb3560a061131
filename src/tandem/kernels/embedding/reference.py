"""Embedding lookup in plain torch: the specification of ``cpu.py``."""

from __future__ import annotations

import torch


def embed(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the table: int64 [M], [V, H] -> [M, H]."""
    return table[token_ids]
