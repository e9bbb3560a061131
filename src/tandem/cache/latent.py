"""Paged latents of one MLA layer, in fp32, fp16 or 8 bits."""

from __future__ import annotations

import torch

from tandem.cache.sizes import Q8_GROUP, LatentFormat, latent_bytes_per_token
from tandem.kernels.latent_q8 import reference as q8


class LatentCache:
    """Latents by physical token index, ``page · page_tokens + position mod page_tokens``."""

    def __init__(self, total_tokens: int, latent_size: int, cache_format: LatentFormat) -> None:
        latent_bytes_per_token(latent_size, cache_format)
        self.latent_size = latent_size
        self._format = cache_format
        dtype = {"fp32": torch.float32, "fp16": torch.float16, "q8": torch.int8}[cache_format]
        self._values = torch.zeros(total_tokens, latent_size, dtype=dtype)
        groups = latent_size // Q8_GROUP if cache_format == "q8" else 0
        self._scales = torch.zeros(total_tokens, groups, dtype=torch.float16)

    @property
    def allocated_bytes(self) -> int:
        return self._values.nbytes + self._scales.nbytes

    def write(self, tokens: torch.Tensor, latents: torch.Tensor) -> None:
        """Store latents float32 [R, L] at physical indices int64 [R]."""
        if self._format == "q8":
            self._values[tokens], self._scales[tokens] = q8.encode(latents)
        else:
            # A value beyond fp16 must not become infinite and poison the whole row.
            largest = torch.finfo(self._values.dtype).max
            self._values[tokens] = latents.clamp(-largest, largest).to(self._values.dtype)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Latents at physical indices int64 [T], as float32 [T, L]."""
        if self._format == "q8":
            return q8.decode(self._values[tokens], self._scales[tokens])
        return self._values[tokens].float()
