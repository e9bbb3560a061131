"""Facts about this machine for ``doctor`` and for bench records. Works without any GPU or driver."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tandem.core.machine import available_memory_bytes, memory_info, usable_processors

PACKAGES = (
    "torch", "numpy", "numba", "triton", "cuda-core", "safetensors", "gguf", "tokenizers", "jinja2",
    "huggingface_hub", "fastapi", "uvicorn", "pydantic", "llguidance", "prometheus-client", "nvidia-ml-py",
)  # fmt: skip
_P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, whose name in nvidia-ml-py stands for a tuple by mistake."""
OPTIONAL_PACKAGES = frozenset({"triton", "cuda-core"})
"""Only needed for CUDA cards."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One CUDA card, as the driver reports it."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    link: str
    """PCI Express generation and width now, and the most that card and slot can do."""
    peers: tuple[int, ...]
    """Cards it can read directly, by the driver's word (not yet verified by content)."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    driver: str | None
    """None = no NVIDIA driver here."""
    cards: tuple[GpuFacts, ...] = ()
    trouble: str | None = None
    """Why the driver could not be asked, if it is there but does not answer."""


def machine_facts() -> dict[str, Any]:
    """Processor, memory, system and versions, as they go into a record."""
    return {
        "processor": processor_name(),
        "processors": usable_processors(),
        "memory_bytes": memory_info()["MemTotal"],
        "available_bytes": available_memory_bytes(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": package_versions(),
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def package_versions() -> Mapping[str, str | None]:
    """None = not installed."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def source_commit() -> str | None:
    """The commit of the checkout this package runs from, ``+`` if it has been edited; None elsewhere."""
    folder = Path(__file__).parent
    try:
        commit = _git("rev-parse", "--short=12", "HEAD", folder=folder)
        changes = _git("status", "--porcelain", "--", ".", folder=folder)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")


def _git(*arguments: str, folder: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def gpu_report() -> GpuReport:
    """Ask the driver through NVML; loads no torch and takes no memory on a card."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return GpuReport(None)
    except pynvml.NVMLError as error:
        return GpuReport(None, (), f"the driver does not answer: {error}")
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return GpuReport(driver, tuple(_gpu(pynvml, handles, index) for index in range(len(handles))))
    except pynvml.NVMLError as error:
        return GpuReport(None, (), f"the driver does not answer: {error}")
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, handles: list[Any], index: int) -> GpuFacts:
    handle = handles[index]
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    peers = tuple(
        other for other in range(len(handles)) if other != index and _is_peer(pynvml, handle, handles[other])
    )
    name = _text(pynvml.nvmlDeviceGetName(handle))
    return GpuFacts(index, name, memory.total, memory.free, _link(pynvml, handle), peers)


def _link(pynvml: Any, handle: Any) -> str:
    try:
        now = (
            pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        )
        most = (
            pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        )
    except pynvml.NVMLError:
        return "unknown"
    return f"Gen{now[0]} x{now[1]} (at most Gen{most[0]} x{most[1]})"


def _is_peer(pynvml: Any, one: Any, other: Any) -> bool:
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, _P2P_READ)
    except pynvml.NVMLError:
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
