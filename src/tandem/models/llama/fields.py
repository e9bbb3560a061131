"""Typed reading of a checkpoint's description: a field that is missing or unusable is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.core.errors import ModelUnsupportedError
from tandem.quant.base import LANES


@dataclass(frozen=True, slots=True)
class Fields:
    """``where`` says what is being read, for messages: ``config.json`` or ``GGUF metadata``."""

    values: Mapping[str, object]
    where: str

    def count(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number; ``default`` stands in for a missing or null field."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.unusable(name, f"a whole number of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; ``default`` stands in for a missing or null field."""
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.unusable(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.unusable(name, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.unusable(name, "a word")
        return value

    def nested(self, name: str) -> Fields:
        """The object in a field, empty if the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return Fields({}, f"{self.where} {name}")
        if not isinstance(value, Mapping):
            raise self.unusable(name, "an object")
        return Fields(value, f"{self.where} {name}")

    def unusable(self, name: str, wanted: str) -> ModelUnsupportedError:
        found = repr(self.values[name]) if name in self.values else "no such field"
        return ModelUnsupportedError(f"{self.where}: {name} must be {wanted}", found=found)


def check_head_dim(head_dim: int, where: str) -> None:
    """Heads must fill whole vectors of the kernels. Raises ModelUnsupportedError."""
    if head_dim % LANES:
        raise ModelUnsupportedError(
            f"{where}: the head size must be a multiple of {LANES}", found=str(head_dim)
        )
