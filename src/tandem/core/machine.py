"""What this machine may use: memory and processors, container limits included. Linux; no packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that can be taken without swapping, at most what the control group leaves.

    ``root`` stands in for the file system's root in tests.
    """
    free = memory_info(root)["MemAvailable"]
    limit = _read_number(root / "sys/fs/cgroup/memory.max")
    used = _read_number(root / "sys/fs/cgroup/memory.current")
    if limit is None or used is None:
        return free
    # Pages of files count as used in a control group, but are given back under pressure.
    return max(min(free, limit - used + _inactive_file_bytes(root)), 0)


def memory_info(root: Path = Path("/")) -> Mapping[str, int]:
    """/proc/meminfo in bytes."""
    values = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[0]
        values[name] = int(number) * 1024 if rest.endswith("kB") else int(number)
    return values


def usable_processors(root: Path = Path("/")) -> int:
    """Processors this process may run on, at most the control group's quota (rounded up)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return allowed
    if quota == "max":
        return allowed
    return max(min(allowed, -(-int(quota) // int(period))), 1)


def _inactive_file_bytes(root: Path) -> int:
    try:
        lines = (root / "sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _read_number(path: Path) -> int | None:
    """None where the file is missing or says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
