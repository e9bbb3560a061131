"""One core is enough for tiny models, and quicker than sharing two with other tests."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest
import torch

from tandem.kernels.jit import use_threads


@pytest.fixture(autouse=True)
def _one_core_and_no_gradients() -> Iterator[None]:
    torch_threads, numba_threads = torch.get_num_threads(), numba.get_num_threads()
    use_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(torch_threads)
    numba.set_num_threads(numba_threads)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
