"""Architecture string -> the module pair that knows it, imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from tandem.core.errors import ModelUnsupportedError
from tandem.models.base import ModelModule, ModelSpec, SpecModule

_PACKAGES: dict[str, str] = {
    # config.json, "architectures"
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
    "Glm5NextForConditionalGeneration": "glm5_next",
    # GGUF, "general.architecture"
    "llama": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
}


def supported_architectures() -> tuple[str, ...]:
    return tuple(_PACKAGES)


def spec_module(architecture: str) -> SpecModule:
    """The torch-free half. Raises ModelUnsupportedError listing what is supported."""
    return cast(SpecModule, importlib.import_module(f"tandem.models.{_package(architecture)}.spec"))


def model_module(architecture: str) -> ModelModule:
    """The computing half (imports torch). Raises ModelUnsupportedError listing what is supported."""
    return cast(ModelModule, importlib.import_module(f"tandem.models.{_package(architecture)}.model"))


def spec_from_config(config: Mapping[str, object]) -> ModelSpec:
    """Read a Hugging Face config.json. Raises ModelUnsupportedError naming the field at fault."""
    names = config.get("architectures")
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        raise ModelUnsupportedError(
            "config.json does not say what the model is",
            found=f"architectures = {names!r}",
            remedy=f"one of {', '.join(supported_architectures())}",
        )
    return spec_module(names[0]).from_config(config)


def spec_from_gguf(metadata: Mapping[str, object]) -> ModelSpec:
    """Read a GGUF file's metadata. Raises ModelUnsupportedError naming the key at fault."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelUnsupportedError(
            "The GGUF file does not say what the model is", found=f"general.architecture = {name!r}"
        )
    return spec_module(name).from_gguf(metadata)


def _package(architecture: str) -> str:
    package = _PACKAGES.get(architecture)
    if package is None:
        raise ModelUnsupportedError(
            f"Architecture {architecture} is not supported",
            found=architecture,
            remedy=f"one of {', '.join(supported_architectures())}",
        )
    return package
