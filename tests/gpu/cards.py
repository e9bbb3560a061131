"""The card the tests run on. Compiled kernels are kept where they always are, by the hash of their making."""

from __future__ import annotations

import pytest
import torch

from tandem.core.settings import read_environment
from tandem.kernels.nvrtc import KernelSource, compile_together, kernel_module

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
