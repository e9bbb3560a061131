"""The card the tests run on. Compiled kernels are kept where they always are, by the hash of their making."""

from __future__ import annotations

import pytest
import torch

from tandem.core.settings import read_environment
from tandem.kernels.nvrtc import KernelSource, capability_of, compile_together, kernel_module

CUBINS = read_environment().cache_dir
DEVICE = torch.device("cuda", 0)
NEEDS_CARD = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]


def compile_ahead(*sources: KernelSource) -> None:
    """On all processors, rather than one after the other as they are launched."""
    compile_together([kernel_module(source, DEVICE, CUBINS) for source in sources])


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """NaN, or the largest integer: what nobody wrote is seen."""
    value = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(shape, value, dtype=dtype, device=DEVICE)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    found, expected = found.cpu().double(), expected.cpu().double()
    return ((found - expected).norm() / expected.norm()).item()


def in_rows(rotated: torch.Tensor) -> torch.Tensor:
    """The input of a routed product, [G, P, k], in plain rows: Hopper's lie as routed_chunk.cu says."""
    if capability_of(DEVICE)[0] != 9:
        return rotated
    groups, pairs, inputs = rotated.shape
    pieces = rotated.view(groups, inputs // 64, pairs // 8, 8, 8, 8)  # 8 lines of 8 pieces of 8 values
    line, piece = torch.arange(8)[:, None], torch.arange(8)
    pieces = pieces[:, :, :, line, line ^ piece]
    return pieces.reshape(groups, inputs // 64, pairs, 64).transpose(1, 2).reshape(groups, pairs, inputs)
