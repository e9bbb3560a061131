"""What a process must settle with its C libraries before torch, numba or threads are there."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

from tandem.core.settings import default_variable

_M_ARENA_MAX = -8
"""glibc's ``mallopt`` number for the most arenas."""
_ARENAS = 2
_MADV_DONTNEED = 4
"""Linux's number; /proc/self/smaps exists there alone."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")
"""First line of a mapping in /proc/self/smaps: addresses, access, offset, device, inode."""


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
    """Give back what a load leaves behind: freed heap, and pages of files that were needed to start.

    The compiler behind the kernels alone leaves 70 MiB of its code resident, importing torch 60 MiB; what is
    needed again comes back from the system's file cache.
    """
    gc.collect()
    trim_heap()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "madvise"):
        for start, size_bytes in _clean_file_mappings():
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _MADV_DONTNEED)


def trim_heap() -> None:
    """Give freed heap back to the system; takes milliseconds and lets other threads run."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _clean_file_mappings() -> list[tuple[int, int]]:
    """(address, bytes) of this process's mappings that hold nothing but unchanged pages of a file.

    Mappings that are shared (devices) or can be written are left out, and so are those with changed pages:
    the tables of addresses that the loader filled in and then made read-only lie there.
    """
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[int, int]] = []
    mapping: tuple[int, int] | None = None
    for line in lines:
        if match := _MAPPING.match(line):
            start, end, access, inode = match.groups()
            of_file = inode != "0" and access[1] == "-" and access[3] == "p"
            mapping = (int(start, 16), int(end, 16) - int(start, 16)) if of_file else None
        elif mapping and line.startswith("Anonymous:") and line.split()[1] == "0":
            found.append(mapping)
    return found
