"""What one indexer keeps: a paged key per complete pool, and a raw tail per sequence.

The raw [key ‖ gate] of a token is only needed until its pool is complete. It lives in a ring of the slot,
indexed by position, long enough that up to MAX_ROWS_PER_RUN rows can be written and then rejected without
losing the tokens before them::

    positions      …  s−P+1 … s−1 | s … s+15          ring size P − 1 + 16
                      may complete    a verify step,
                      a pool later    kept or rejected

A pool completed by rejected rows is written again when its positions are; until then no query sees it,
because a query sees only pools that end at or before its own position.
"""

from __future__ import annotations

import torch

from tandem.cache.sizes import ring_tokens
from tandem.kernels.indexer.reference import pool_keys


class PooledIndexCache:
    """Pool keys by physical pool index, ``page · pools_per_page + pool mod pools_per_page``."""

    def __init__(
        self, total_tokens: int, max_slots: int, pool_tokens: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        self.pool_tokens = pool_tokens
        self._pools = torch.zeros(total_tokens // pool_tokens, head_dim, dtype=dtype)
        self._ring = torch.zeros(max_slots, ring_tokens(pool_tokens), 2, head_dim)

    @property
    def allocated_bytes(self) -> int:
        return self._pools.nbytes + self._ring.nbytes

    def append_row(
        self, slot: int, position: int, key_and_gate: torch.Tensor, pool: torch.Tensor, bias: torch.Tensor
    ) -> None:
        """Store one token's key and gate [2, D]; a pool it completes goes to physical index ``pool`` int64
        [1].

        bias: [P, D], added to the gates of a pool's members.
        """
        ring = self._ring[slot]
        ring[position % ring.shape[0]] = key_and_gate
        if (position + 1) % self.pool_tokens == 0:
            first = position + 1 - self.pool_tokens
            members = ring[torch.arange(first, position + 1) % ring.shape[0]]
            self._write(pool, pool_keys(members[None, :, 0], members[None, :, 1], bias))

    def append_chunk(
        self,
        slot: int,
        start: int,
        length: int,
        keys_and_gates: torch.Tensor,
        pools: torch.Tensor,
        bias: torch.Tensor,
    ) -> None:
        """Store a prefill chunk [C, 2, D] from ``start`` (on a pool boundary), of which ``length`` rows
        count.

        pools: physical indices int64 of the chunk's complete pools, length // P of them. All C rows are
        pooled, whatever ``length`` is, so that a pool's bits do not depend on where the prompt ends.
        """
        C = keys_and_gates.shape[0] // self.pool_tokens * self.pool_tokens
        members = keys_and_gates[:C].view(-1, self.pool_tokens, *keys_and_gates.shape[1:])
        self._write(pools, pool_keys(members[:, :, 0], members[:, :, 1], bias)[: pools.shape[0]])
        ring = self._ring[slot]
        complete = length // self.pool_tokens * self.pool_tokens
        tail = torch.arange(complete, length)
        ring[(start + tail) % ring.shape[0]] = keys_and_gates[tail]

    def read(self, pools: torch.Tensor) -> torch.Tensor:
        """Pool keys at physical indices int64 [N], as float32 [N, D]."""
        return self._pools[pools].float()

    def _write(self, pools: torch.Tensor, keys: torch.Tensor) -> None:
        largest = torch.finfo(self._pools.dtype).max
        self._pools[pools] = keys.clamp(-largest, largest).to(self._pools.dtype)
