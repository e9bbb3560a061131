"""The specification of the k-pool indexer, in plain torch, float32.

Alphabet: R rows (queries), T tokens, N complete pools, P tokens a pool, H index heads, D their size.

Tokens are grouped into pools of P from position 0. A pool has one key, its members' keys averaged with
softmax weights per channel. A query at position t chooses among the pools that end at or before t, and
always attends to the tokens after them, its tail::

    position   0        P        2P       3P     t
               | pool 0 | pool 1 | pool 2 | tail |   pool 3 is not complete for t
"""

from __future__ import annotations

import torch

LAYER_NORM_EPS = 1e-6


def pool_keys(keys: torch.Tensor, gates: torch.Tensor, position_bias: torch.Tensor) -> torch.Tensor:
    """Keys of complete pools: keys and gates [N, P, D], position_bias [P, D]. Returns [N, D]."""
    P = keys.shape[1]
    logits = gates + position_bias
    weights = torch.exp(logits - logits.amax(1, keepdim=True))
    total, norm = keys[:, 0] * weights[:, 0], weights[:, 0]
    for i in range(1, P):
        total, norm = total + keys[:, i] * weights[:, i], norm + weights[:, i]
    return total / norm


def score_pools(q: torch.Tensor, head_weights: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    """Σ_h w_h · relu(q_h · k / √D) / √H. q: [R, H, D], head_weights: [R, H], pooled: [N, D]. Returns [R,
    N].
    """
    R, H, D = q.shape
    overlap = torch.relu((q.reshape(R * H, D) @ pooled.T).view(R, H, -1) * D**-0.5)
    return torch.einsum("rh,rhn->rn", head_weights * H**-0.5, overlap)


def select_pools(scores: torch.Tensor, visible_pools: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` best visible pools of each row, as a mask bool [R, N].

    scores: [R, N]; visible_pools: int64 [R], pools that are complete for the row. Ties go to the earlier
    pool.
    """
    R, N = scores.shape
    hidden = torch.arange(N) >= visible_pools[:, None]
    order = torch.sort(scores.masked_fill(hidden, -torch.inf), dim=-1, descending=True, stable=True).indices
    chosen = torch.zeros(R, N, dtype=torch.bool)
    chosen.scatter_(1, order[:, :count], True)
    return chosen & ~hidden


def attended_tokens(chosen: torch.Tensor, positions: torch.Tensor, pool_tokens: int, T: int) -> torch.Tensor:
    """Which of T tokens each row attends to: its chosen pools and its tail, bool [R, T].

    chosen: bool [R, N], positions: int64 [R]. T may exceed N · pool_tokens by an incomplete pool or more.
    """
    N = chosen.shape[1]
    token = torch.arange(T)
    tail_start = (positions + 1) // pool_tokens * pool_tokens
    mask = (token >= tail_start[:, None]) & (token <= positions[:, None])
    pooled = min(N * pool_tokens, T)
    mask[:, :pooled] |= chosen.repeat_interleave(pool_tokens, dim=1)[:, :pooled]
    return mask
