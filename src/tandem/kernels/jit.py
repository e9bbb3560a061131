"""How CPU kernels are compiled, cached and spread over the cores.

numba reads its cache folder when a function is decorated, so it is settled here, before any kernel is. The
folder's name carries a hash of the kernel sources: numba notices a change of the decorated file alone, not
of the helpers it calls in others.

Threads: OpenMP starts a parallel region in about 3 µs and may be entered by several stage workers at once.
numba's built-in pool needs 20 to 30 µs (2 cores, measured) and must be entered by one thread at a time; it
is the fallback where no OpenMP runtime can be loaded, and ``parallel_region`` then serialises the workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch  # loads the OpenMP runtime it ships, which numba then finds
from numba import types
from numba.np.ufunc.parallel import get_thread_id

from tandem.core.settings import read_environment

_WORTH_SPREADING = 100_000
"""Multiply-adds that take one core about as long as starting a parallel region (3 µs, 16 lanes)."""


_AFFINITY_BYTES = 128
"""Room for 1,024 cores, as in the C library."""
_set_affinity: Any = types.ExternalFunction(
    "sched_setaffinity", types.int32(types.int32, types.uintp, types.voidptr)
)
_thread_id: Any = get_thread_id
_first_core = itertools.count()
"""Stages start on different cores, so that their single-threaded parts do."""


def _source_hash() -> str:
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/cpu.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _openmp_available() -> bool:
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return False
    return True


_config: Any = numba.config
_config.CACHE_DIR = str(read_environment().cache_dir / "kernels" / _source_hash())
_config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

_region: AbstractContextManager[Any] = contextlib.nullcontext() if _openmp_available() else threading.RLock()


def parallel_region(multiply_adds: int | None = None) -> AbstractContextManager[Any]:
    """Hold this around calls of parallel kernels; re-entrant, and free where the thread pool allows it.

    ``multiply_adds`` tells how much work one call inside is about to do: little work stays on one core.
    """
    if multiply_adds is not None and multiply_adds < _WORTH_SPREADING:
        return _one_core()
    return _region


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with _region:
            yield
    finally:
        numba.set_num_threads(threads)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile for one core. No fast-math: the order of operations is the one written."""
    return numba.njit(cache=True, nogil=True, error_model="numpy")(function)


def parallel_kernel(function: Callable[..., Any]) -> Any:
    """Compile with ``numba.prange`` loops spread over the cores."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", parallel=True)(function)


def use_threads(count: int) -> None:
    """Spread what the calling thread computes from now on, here and in torch, over ``count`` cores.

    The calling thread and its helpers are tied to a core each. Left to themselves, threads that sleep between
    short regions are woken on the core of the thread that wakes them and take turns there: one core's speed
    from two (measured on 2 cores, 2026-11-30).
    """
    torch.set_num_threads(count)
    threads = min(count, _config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if 1 < threads <= len(cores):
        first = next(_first_core)
        chosen = [cores[(first + i) % len(cores)] for i in range(threads)]
        masks = np.zeros((threads, _AFFINITY_BYTES), np.uint8)
        for i, core in enumerate(chosen):
            masks[i, core // 8] = 1 << core % 8
        with parallel_region():
            _tie_to_cores(masks)


@parallel_kernel
def _tie_to_cores(masks: Any) -> None:
    for _ in numba.prange(masks.shape[0]):
        _set_affinity(0, masks.shape[1], masks[_thread_id()].ctypes)
