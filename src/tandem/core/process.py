"""What a process must settle with its C libraries before torch, numba or threads are there."""

from __future__ import annotations

import ctypes
import gc

from tandem.core.settings import default_variable

_M_ARENA_MAX = -8
"""glibc's ``mallopt`` number for the most arenas."""
_ARENAS = 2


def settle_process() -> None:
    """Call first thing in a command. What the user has set in the environment stays.

    OpenMP: libgomp by default spins at barriers for milliseconds. As soon as anything else wants the cores (a
    client on the same machine is enough) the spinner holds the core that the thread it waits for needs: a
    token took 60 to 90 ms. Threads that hardly spin sleep between regions and are woken late: prefill fell
    by a third. With threads tied to cores (``kernels/jit.py``) 5,000 spins, about 0.1 ms, bridge the gaps
    between regions: 11 ms a token on two free cores, 28 ms on two busy ones (2026-11-30).

    malloc: glibc gives threads arenas of their own, and what one thread frees another cannot use. After 500
    mixed requests nine arenas of 64 MiB each held little but free memory (2026-11-30).
    """
    default_variable("GOMP_SPINCOUNT", "5000")
    if default_variable("MALLOC_ARENA_MAX", str(_ARENAS)):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _ARENAS)


def release_free_memory() -> None:
    """Give freed memory back to the system: for the end of a load, which leaves a lot of it behind."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
