"""The specification of absorbed latent attention, in plain torch, float32.

Alphabet: R rows, H heads, N query/key size, V value size, L latent size, T cached tokens.

Every token caches one latent c [L] for all heads. Head h's key and value are K_h c and V_h c, with K_h [N,
L] and V_h [V, L] the two halves of ``kv_b``. Rather than expand every cached token, the query goes into
latent space and the result comes out of it: q·(K_h c) = (K_hᵀ q)·c and Σ p (V_h c) = V_h (Σ p c).
"""

from __future__ import annotations

import torch


def split_kv_b(weight: torch.Tensor, heads: int, key_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """kv_b [H·(N+V), L] → (K [H, N, L], V transposed [H, L, V]), both contiguous."""
    per_head = weight.view(heads, -1, weight.shape[-1])
    return per_head[:, :key_size].contiguous(), per_head[:, key_size:].transpose(1, 2).contiguous()


def absorb_query(q: torch.Tensor, key_half: torch.Tensor) -> torch.Tensor:
    """q [R, H, N] into latent space, [R, H, L]. key_half: [H, N, L]."""
    return torch.bmm(q.transpose(0, 1), key_half).transpose(0, 1)


def latent_attention(
    q: torch.Tensor, latents: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """softmax(scale · q cᵀ) c. q: [R, H, L] absorbed, latents: [T, L], mask: bool [R, T], True = attend.

    Every row must attend to at least one token. Returns [R, H, L].
    """
    R, H, L = q.shape
    scores = (q.reshape(R * H, L) @ latents.T).view(R, H, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return (torch.softmax(scores, dim=-1).view(R * H, -1) @ latents).view(R, H, L)


def unabsorb_output(attended: torch.Tensor, value_half: torch.Tensor) -> torch.Tensor:
    """[R, H, L] out of latent space, [R, H, V]. value_half: [H, L, V]."""
    return torch.bmm(attended.transpose(0, 1), value_half).transpose(0, 1)
