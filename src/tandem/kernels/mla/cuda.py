"""Latent attention of few rows on a CUDA card, around its products: ``enter``, ``absorb``, ``unabsorb``.

Alphabet: R rows, H heads, Q query low rank, N query/key and value size, L latent size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.operands import Exl3Stack, Inputs, Sums
from tandem.kernels.exl3.reference import ROTATION
from tandem.kernels.mla.operands import Parts, Where
from tandem.kernels.nvrtc import KernelModule, KernelSource, kernel_module

SOURCE = KernelSource(Path(__file__).parent / "csrc" / "mla_rows.cu")
INDEX_DIM = 128


@dataclass(frozen=True, slots=True)
class MlaStepWeights:
    """Everything of a layer but its large products. fp32 unless said otherwise."""

    query_norm: torch.Tensor
    """[Q]."""
    latent_norm: torch.Tensor
    """[L]."""
    small: torch.Tensor
    """fp16 [2·128 + index heads, hidden]: index key, pool gate, head weights, for ``DenseRows``."""
    key_norm: torch.Tensor
    """[128]."""
    key_bias: torch.Tensor
    """[128]."""
    pool_bias: torch.Tensor
    """[pool_tokens, 128]."""
    key_half: torch.Tensor
    """fp16 [H, N, L], of kv_b."""
    value_half: torch.Tensor
    """fp16 [H, L, N], of kv_b."""


@dataclass(frozen=True, slots=True)
class DeviceCache:
    """One layer's paged latents, pool keys and raw tails."""

    latents: torch.Tensor
    """fp16 or int8 [tokens, L]."""
    scales: torch.Tensor | None
    """fp16 [tokens, L/32] for int8."""
    pools: torch.Tensor
    """fp16 [tokens / pool_tokens, 128]."""
    ring: torch.Tensor
    """fp32 [slots, ring_tokens, 2, 128]."""

    @property
    def nbytes(self) -> int:
        parts = (self.latents, self.scales, self.pools, self.ring)
        return sum(part.nbytes for part in parts if part is not None)


@dataclass(slots=True)
class MlaRows:
    """Launches for one card."""

    device: torch.device
    cache_dir: Path | None
    norm_eps: float

    def enter(
        self,
        down: Sums,
        down_stack: Exl3Stack,
        small: torch.Tensor,
        weights: MlaStepWeights,
        up_suh: torch.Tensor,
        cache: DeviceCache,
        where: Where,
        run_starts: torch.Tensor,
        slots: torch.Tensor,
        out: Inputs,
    ) -> None:
        """Sums of q_a and kv_a -> cache, index keys, and the rotated inputs of q_b and wq_b."""
        rows = small.shape[0]
        query, latent = down_stack.outputs
        self._module(1, cache).launch(
            "mla_enter",
            (rows, 3, 1),
            (384, 1, 1),
            down.values,
            down.sums,
            down.scale,
            down_stack.svh[0],
            down_stack.svh[1],
            weights.query_norm,
            weights.latent_norm,
            up_suh,
            small,
            weights.key_norm,
            weights.key_bias,
            weights.pool_bias,
            where.positions,
            where.run_of_row,
            run_starts,
            slots,
            where.page_tables,
            cache.latents,
            cache.scales,
            cache.ring,
            cache.pools,
            out.rotated,
            out.peaks,
            query,
            latent,
            down.splits,
            down.pitch,
            small.shape[1],
            where.page_tables.shape[1],
            where.page_tokens,
            cache.ring.shape[1],
            where.pool_tokens,
            float(self.norm_eps),
            shared_bytes=4 * max(query, latent),
        )

    def absorb(
        self,
        up: Sums,
        up_stack: Exl3Stack,
        weights: MlaStepWeights,
        cache: DeviceCache,
        q: torch.Tensor,
        index_q: torch.Tensor,
        bucket: int,
    ) -> None:
        """Sums of q_b and wq_b -> q fp32 [R, H, L] scaled, in the cache's basis, and index_q [R, IH, 128]."""
        rows, heads, latent = q.shape
        size = weights.key_half.shape[1]
        index_heads = index_q.shape[1]
        self._module(bucket, cache).launch(
            "absorb",
            (heads + index_heads, latent // ROTATION, 1),
            (256, 1, 1),
            up.values,
            up.sums,
            up.scale,
            up_stack.svh[0],
            up_stack.svh[1],
            weights.key_half,
            q,
            index_q,
            heads,
            index_heads,
            size,
            latent,
            up.splits,
            up.pitch,
            rows,
            float(size**-0.5),
            shared_bytes=4 * rows * size,
        )

    def unabsorb(
        self,
        parts: Parts,
        weights: MlaStepWeights,
        cache: DeviceCache,
        joined: torch.Tensor,
        out_suh: torch.Tensor,
        out: Inputs,
        bucket: int,
    ) -> None:
        """Joins the parts in ``joined`` fp32 [R, H, L] (may be the queries' memory) -> the output product's
        input.
        """
        rows, count, heads, latent = parts.attended.shape
        size = weights.value_half.shape[2]
        module = self._module(bucket, cache)
        module.launch(
            "join_parts",
            (heads, rows, 1),
            (latent, 1, 1),
            parts.attended,
            parts.maxima,
            parts.totals,
            joined,
            count,
        )
        module.launch(
            "unabsorb",
            (heads, size // ROTATION, 1),
            (256, 1, 1),
            joined,
            weights.value_half,
            out_suh,
            out.rotated,
            out.peaks,
            size,
            latent,
            rows,
            shared_bytes=4 * rows * latent,
        )

    def _module(self, bucket: int, cache: DeviceCache) -> KernelModule:
        source = SOURCE.with_defines(ROWS=bucket, Q8=int(cache.scales is not None))
        return kernel_module(source, self.device, self.cache_dir)
