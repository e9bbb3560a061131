"""Typed reading of config.json: every field is there and of its type, or an error names it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.core.errors import ModelUnsupportedError

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """A config's text part. A name may hold a dot for a nested object; of several names the first there
    counts.
    """

    values: Mapping[str, object]

    @classmethod
    def of_text(cls, config: Mapping[str, object]) -> Fields:
        text = config.get("text_config", config)
        if not isinstance(text, Mapping):
            raise ModelUnsupportedError("config.json's text_config is not an object", found=repr(text))
        return cls(text)

    def has(self, name: str) -> bool:
        return self._find(name) is not _MISSING

    def count(self, *names: str, minimum: int = 1, default: int | None = None) -> int:
        value = self._find(*names)
        if value is _MISSING and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._unusable(names, value, f"a whole number of at least {minimum}")
        return value

    def number(self, *names: str) -> float:
        value = self.optional_number(*names)
        if value is None:
            raise self._unusable(names, None, "a number")
        return value

    def optional_number(self, *names: str) -> float | None:
        """The field must be there; null means that it is switched off."""
        value = self._find(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unusable(names, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._find(name)
        if value is _MISSING and default is not None:
            return default
        if not isinstance(value, bool):
            raise self._unusable((name,), value, "true or false")
        return value

    def per_layer(self, name: str, layers: int) -> tuple[str, ...]:
        """One word a layer; entries for layers past the last (speculative ones) are left out."""
        value = self._find(name)
        if not isinstance(value, list | tuple) or len(value) < layers:
            raise self._unusable((name,), value, f"a list of {layers} entries")
        return tuple(str(item) for item in value[:layers])

    def require(self, name: str, only: object, *, absent_is_fine: bool = False) -> None:
        """Refuse a config whose ``name`` is anything but ``only``."""
        value = self._find(name)
        if value == only or (absent_is_fine and (value is _MISSING or value is None)):
            return
        raise self._unusable((name,), value, repr(only))

    def _find(self, *names: str) -> object:
        for name in names:
            value: object = self.values
            for part in name.split("."):
                value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
            if value is not _MISSING:
                return value
        return _MISSING

    @staticmethod
    def _unusable(names: tuple[str, ...], value: object, wanted: str) -> ModelUnsupportedError:
        return ModelUnsupportedError(
            f"config.json's {' or '.join(names)} must be {wanted}",
            found="no such field" if value is _MISSING else repr(value),
            remedy="the model's own config.json, whole",
        )
