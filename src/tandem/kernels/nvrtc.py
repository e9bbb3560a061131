"""CUDA C++ compiled at first use by NVRTC: no compiler on the user's machine, no build step.

A compiled kernel is kept under the cache folder, named by the hash of everything that went into it (source,
options, architecture, NVRTC's version), so a second start loads it in a millisecond and a changed source can
never meet an old binary. Compiling needs no card: a CPU machine checks every architecture.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tandem.core.cards import Capability
from tandem.core.errors import EngineFault, ModelUnsupportedError
from tandem.core.log import get_logger
from tandem.core.machine import usable_processors
from tandem.core.settings import read_cuda_capability

if TYPE_CHECKING:
    import torch

_log = get_logger("kernels")

_OWN_HEADER = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
_DEFAULT_SHARED_BYTES = 15 * 1024
"""Without asking: 48 KiB less what a kernel may hold statically."""
SUPPORTED_ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One ``.cu`` file and the macros it is compiled with. Equal sources share one compiled module."""

    path: Path
    defines: tuple[tuple[str, str | int], ...] = ()

    def with_defines(self, **defines: str | int) -> KernelSource:
        return KernelSource(self.path, tuple(sorted((*self.defines, *defines.items()))))


_SHARED_BYTES = {
    (8, 0): 163 * 1024,
    (8, 6): 99 * 1024,
    (8, 9): 99 * 1024,
    (9, 0): 227 * 1024,
    (12, 0): 99 * 1024,
}
"""Shared memory that a block may have, by compute capability (CUDA C++ programming guide)."""


def architecture_of(major: int, minor: int) -> str:
    """NVRTC's name for a card's compute capability. Hopper's own instructions need its ``a``."""
    return f"sm_{major}{minor}" + ("a" if major == 9 else "")


def capability_of(device: torch.device | int) -> Capability:
    """The compute capability that the card's kernels are made for: its own, or the older one asked for."""
    import torch

    own = torch.cuda.get_device_capability(device)
    asked = _asked_capability()
    return own if asked is None else min(own, asked)


@functools.cache
def _asked_capability() -> Capability | None:
    return read_cuda_capability()


@functools.cache
def _toolchain() -> tuple[Any, str, tuple[str, ...]]:
    """cuda.core, NVRTC's version, and where the CUDA headers lie. Raises ModelUnsupportedError."""
    try:
        import cuda.core
        from cuda.bindings import nvrtc
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise ModelUnsupportedError(
            "CUDA kernels need the GPU packages", found=str(error), remedy="pip install 'tandem-serve[gpu]'"
        ) from error
    _, major, minor = nvrtc.nvrtcVersion()
    found = (find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    include = tuple(dict.fromkeys(str(path) for path in found if path))
    return cuda.core, f"{major}.{minor}", include


def compile_cubin(
    source: KernelSource, architecture: str, cache_dir: Path | None, form: Literal["cubin", "ptx"] = "cubin"
) -> bytes:
    """Machine code for ``architecture`` (``sm_80``), from the cache or compiled now.

    Machine code runs on cards of its own major capability only; as ``ptx``, on newer ones too.

    Raises EngineFault carrying the compiler's log if the source does not compile (our bug), and
    ModelUnsupportedError if the GPU packages are missing.
    """
    core, version, include = _toolchain()
    text = _with_headers(source.path)
    key = hashlib.sha256(repr((text, source.defines, architecture, version)).encode()).hexdigest()
    kept = cache_dir / "cubin" / f"{source.path.stem}-{key[:32]}.{form}" if cache_dir else None
    if kept is not None and kept.is_file():
        return kept.read_bytes()
    options = core.ProgramOptions(
        arch=architecture,
        std="c++17",
        include_path=list(include),
        define_macro=[(name, str(value)) for name, value in source.defines] or None,
        use_fast_math=False,
    )
    try:
        code: bytes = core.Program(text, "c++", options).compile(form).code
    except Exception as error:
        raise EngineFault(f"{source.path.name} does not compile for {architecture}: {error}") from error
    if kept is not None:
        _keep(kept, code)
    return code


def _with_headers(path: Path) -> str:
    """The source with its own headers (``#include "…"``, relative to it) in place: one text to hash."""

    def insert(match: re.Match[str]) -> str:
        return _with_headers((path.parent / match[1]).resolve())

    return _OWN_HEADER.sub(insert, path.read_text())


def _keep(path: Path, code: bytes) -> None:
    """Write beside and rename: two processes that compile at once both end with a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(code)
    Path(file.name).replace(path)


def _allow_shared(kernel: Any, device_index: int, shared_bytes: int) -> None:
    """More than 48 KiB of dynamic shared memory has to be asked for, kernel by kernel."""
    from cuda.bindings import driver

    capability = capability_of(device_index)
    if shared_bytes > _SHARED_BYTES.get(
        capability, shared_bytes
    ):  # a newer card's own limit would let it pass
        raise EngineFault(
            "A kernel asks for more shared memory than its card has",
            found=f"{shared_bytes} of {_SHARED_BYTES[capability]} bytes at compute capability {capability}",
        )

    (status,) = driver.cuKernelSetAttribute(
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        shared_bytes,
        kernel.handle,
        device_index,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EngineFault(f"A kernel asks for {shared_bytes} bytes of shared memory", found=str(status))


@functools.lru_cache(maxsize=64)
def _stream(device_index: int, handle: int) -> Any:
    """cuda.core's wrapper of a stream of torch's; making one takes as long as a launch."""
    return _toolchain()[0].Stream.from_handle(handle)


_noted: ContextVar[dict[int, KernelModule] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_launches() -> Iterator[Collection[KernelModule]]:
    """Launches of our kernels are noted instead of queued; gives the modules that they need.

    For a program over memory that nothing has been written to yet, so that all of it compiles at once.
    """
    modules: dict[int, KernelModule] = {}
    token = _noted.set(modules)
    try:
        yield modules.values()
    finally:
        _noted.reset(token)


def compile_together(modules: Iterable[KernelModule]) -> None:
    """Compile on all processors; the compiler needs one a module. Raises as ``compile_cubin`` does."""
    _toolchain()  # its packages import each other: threads that import them at once meet half of them
    with ThreadPoolExecutor(usable_processors(), thread_name_prefix="compile") as pool:
        for compiled in [pool.submit(module.compile) for module in modules]:
            compiled.result()


@dataclass(slots=True)
class KernelModule:
    """One source on one card. Launches go to torch's current stream, so that graphs capture them."""

    source: KernelSource
    device_index: int
    cache_dir: Path | None
    _kernels: dict[str, Any] = field(default_factory=dict)
    _allowed_shared: dict[str, int] = field(default_factory=dict)
    _overlaps: bool = False
    _object: Any = None
    _code: bytes | None = None

    def compile(self) -> None:
        """Make the machine code, which the first launch would make otherwise."""
        if self._code is None:
            architecture = architecture_of(*capability_of(self.device_index))
            self._code = compile_cubin(self.source, architecture, self.cache_dir, self._form())

    def _form(self) -> Literal["cubin", "ptx"]:
        import torch

        own = torch.cuda.get_device_capability(self.device_index)
        return "cubin" if own[0] == capability_of(self.device_index)[0] else "ptx"

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        *args: torch.Tensor | float | None,
        shared_bytes: int = 0,
    ) -> None:
        """Queue one kernel. ``args``: tensors (their address), None (a null address), int (int32), float
        (fp32).
        """
        import torch

        noted = _noted.get()
        if noted is not None:
            noted[id(self)] = self
            return
        core = _toolchain()[0]
        kernel = self._kernels.get(name)
        if kernel is None:
            kernel = self._kernels[name] = self._load().get_kernel(name)
        if shared_bytes > self._allowed_shared.get(name, _DEFAULT_SHARED_BYTES):
            _allow_shared(kernel, self.device_index, shared_bytes)
            self._allowed_shared[name] = shared_bytes
        stream = _stream(self.device_index, torch.cuda.current_stream(self.device_index).cuda_stream)
        config = core.LaunchConfig(
            grid=grid,
            block=block,
            shmem_size=shared_bytes,
            programmatic_stream_serialization=self._overlaps,
        )
        core.launch(stream, config, kernel, *(_as_passed(arg) for arg in args))

    def _load(self) -> Any:
        if self._object is None:
            core = _toolchain()[0]
            core.Device(self.device_index).set_current()
            self._overlaps = capability_of(self.device_index)[0] >= 9  # csrc/overlap.cuh
            self.compile()
            load = core.ObjectCode.from_cubin if self._form() == "cubin" else core.ObjectCode.from_ptx
            self._object = load(self._code)
        return self._object


def _as_passed(arg: torch.Tensor | float | None) -> Any:
    if arg is None:
        return 0
    if isinstance(arg, int):
        return np.int32(arg)
    return np.float32(arg) if isinstance(arg, float) else arg.data_ptr()


_modules: dict[tuple[KernelSource, int], KernelModule] = {}


def kernel_module(source: KernelSource, device: torch.device, cache_dir: Path | None) -> KernelModule:
    """The module of a source on a card, compiled at its first launch and shared from then on."""
    index = device.index or 0
    key = (source, index)
    if key not in _modules:
        _modules[key] = KernelModule(source, index, cache_dir)
    return _modules[key]


def describe(defines: Mapping[str, str | int]) -> str:
    """Macros as they would stand on a compiler's command line, for logs."""
    return " ".join(f"-D{name}={value}" for name, value in sorted(defines.items()))
