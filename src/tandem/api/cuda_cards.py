"""Whether this machine can compute on the CUDA cards that were asked for. Imports torch only when called."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tandem.core.cards import Capability
from tandem.core.errors import ServeError
from tandem.core.plan import Card

_PACKAGES = {"triton": "Triton", "cuda.core": "cuda-core", "cuda.bindings": "the CUDA bindings"}
_LEAST_CAPABILITY = (8, 0)
_ON_CPU = "--cards cpu:1"


def free_cuda_bytes(index: int) -> int:
    """Free bytes of one card. Raises ServeError if it is not there or cannot be used, and why."""
    import torch

    asked = f"Card cuda:{index} was asked for"
    if torch.version.cuda is None:
        raise ServeError(
            asked,
            found=f"a torch without CUDA ({torch.__version__})",
            remedy=f"a CUDA build of torch, or {_ON_CPU}",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        raise ServeError(asked, found=f"{count} CUDA card(s)", remedy=f"tandem doctor, or {_ON_CPU}")
    capability = torch.cuda.get_device_capability(index)
    if capability < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(index)
        raise ServeError(
            asked,
            found=f"{name} of compute capability {capability[0]}.{capability[1]}",
            remedy=f"a card of compute capability 8.0 or newer, or {_ON_CPU}",
        )
    missing = missing_packages()
    if missing:
        raise ServeError(
            asked,
            found=f"no {' and no '.join(missing)}, which its kernels are compiled with",
            remedy=f"pip install 'tandem-serve[gpu]', or {_ON_CPU}",
        )
    free: int = torch.cuda.mem_get_info(index)[0]
    return free


def common_capability(cards: Sequence[Card]) -> Capability | None:
    """What kernels are made for on the CUDA cards among these; None where that differs, or without cards."""
    indices = [card.index for card in cards if card.kind == "cuda"]
    if not indices:
        return None
    import torch

    from tandem.kernels.nvrtc import capability_of

    if torch.version.cuda is None or not torch.cuda.is_available():
        return None
    if max(indices) >= torch.cuda.device_count():
        return None
    found = {capability_of(index) for index in indices}
    return found.pop() if len(found) == 1 else None


def missing_packages() -> list[str]:
    """What the kernels are compiled with and this Python does not have."""
    return [name for module, name in _PACKAGES.items() if not _there(module)]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
