"""Attention over paged keys and values in plain torch: the specification of ``cpu.py``.

The pool holds, page by page, layer by layer and head by head, keys with the token innermost and values with
the dimension innermost::

    pool  [pages, layers, kv_heads, 2, page_tokens · D]
          [p, l, h, 0] = keys   [D, page_tokens]
          [p, l, h, 1] = values [page_tokens, D]

Alphabet: M rows, D head size.
"""

from __future__ import annotations

import torch


def append(
    pool: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    page_table: torch.Tensor,
    layer: int,
) -> None:
    """Store keys, values [M, kv_heads, D] of one sequence at ``positions`` [M] of its page table."""
    D = keys.shape[2]
    page_tokens = pool.shape[4] // D
    for m, position in enumerate(positions.tolist()):
        page, token = int(page_table[position // page_tokens]), position % page_tokens
        pool[page, layer, :, 0].unflatten(-1, (D, page_tokens))[:, :, token] = keys[m].to(pool.dtype)
        pool[page, layer, :, 1].unflatten(-1, (page_tokens, D))[:, token] = values[m].to(pool.dtype)


def gather(
    pool: torch.Tensor, page_table: torch.Tensor, layer: int, length: int, D: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``length`` keys and values of a sequence, fp32 [length, kv_heads, D] each."""
    page_tokens = pool.shape[4] // D
    pages = pool[page_table[: -(-length // page_tokens)].long(), layer].float()
    keys = pages[:, :, 0].unflatten(-1, (D, page_tokens)).permute(0, 3, 1, 2)
    values = pages[:, :, 1].unflatten(-1, (page_tokens, D)).permute(0, 2, 1, 3)
    return keys.flatten(0, 1)[:length], values.flatten(0, 1)[:length]


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, position: int, window: int = 0
) -> torch.Tensor:
    """One row at ``position``: queries [heads, D] over keys, values [≥ position + 1, kv_heads, D].

    ``window`` > 0 lets a row see only the last ``window`` positions, itself included.
    """
    first = max(0, position + 1 - window) if window else 0
    group = queries.shape[0] // keys.shape[1]
    seen_keys = keys[first : position + 1].repeat_interleave(group, 1)
    seen_values = values[first : position + 1].repeat_interleave(group, 1)
    scores = torch.einsum("hd,thd->ht", queries, seen_keys) / queries.shape[1] ** 0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), seen_values)
