"""Everything a model is loaded with, resolved once; and how layers of settings become one.

Precedence: built-in default < recipe < profile < settings file < environment < flag. Each layer names the
keys it sets; a key that no option has is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Generic, Literal, TypeVar

from tandem.core.cards import CardRequest
from tandem.core.errors import SettingsError

PrefixReuse = Literal["exact", "fast", "off"]
PREFIX_REUSE: tuple[PrefixReuse, ...] = ("exact", "fast", "off")
_LOWEST = {
    "context_tokens": 2,
    "pool_tokens": 2,
    "max_running": 1,
    "max_waiting": 0,
    "chunk_tokens": 1,
    "threads": 1,
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One model on its cards, with its scheduler and text side."""

    model: str | None = None
    """A folder, a GGUF file, ``org/name[@revision]``; None = the demo model."""
    served_names: tuple[str, ...] = ()
    """What clients call it: the first is its id, the others are aliases; empty = its own name."""
    cards: tuple[CardRequest, ...] = (CardRequest("cpu", 0),)
    context_tokens: int | None = None
    """Longest prompt plus output; None = the model's own, as far as the budgets reach."""
    pool_tokens: int | None = None
    """Tokens the cache holds for all sequences together; None = one full context."""
    split: tuple[int, ...] | None = None
    """Layers per card; None = the planner's cut."""
    max_running: int = 8
    """Sequences computed at once."""
    max_waiting: int = 64
    """Requests that may queue; one more is refused with 429."""
    max_wait_s: float = 300.0
    """A request that waited longer is refused with 429."""
    stall_timeout_s: float = 120.0
    """An engine that has work but finishes no step for so long counts as stuck, and its requests end."""
    chunk_tokens: int | None = None
    """Prompt tokens computed at once; None = chosen for the cards."""
    cache_format: str | None = None
    """Element type of the attention cache; None = the model's default."""
    threads: int | None = None
    """Processor threads for CPU cards; None = all this process may use."""
    prefix_reuse: PrefixReuse = "exact"
    tool_format: str | None = None
    """How the model writes tool calls; None = told from its template, ``none`` = not parsed."""
    reasoning_format: str | None = None
    """How the model marks its reasoning; None = told from its template, ``none`` = not split off."""

    def check(self) -> None:
        """Raises SettingsError for a value out of range."""
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise SettingsError(f"{name} must be at least {lowest}", found=str(value))
        for name in ("max_wait_s", "stall_timeout_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0", found=f"{getattr(self, name):g}")
        if self.prefix_reuse not in PREFIX_REUSE:
            raise SettingsError(
                "prefix_reuse is not known",
                found=self.prefix_reuse,
                remedy=f"one of {', '.join(PREFIX_REUSE)}",
            )
        if any(not name.strip() for name in self.served_names):
            raise SettingsError("A served name must not be empty", found=repr(self.served_names))


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """What one source sets, by option name. A value of None sets nothing."""

    source: str
    values: Mapping[str, object]


OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, slots=True)
class Resolved(Generic[OptionsT]):
    options: OptionsT
    sources: Mapping[str, str]
    """By option name: the source its value came from, ``default`` if none set it."""


def resolve_options(kind: type[OptionsT], layers: Sequence[SettingsLayer]) -> Resolved[OptionsT]:
    """Lay ``layers``, least important first, over the defaults of the frozen dataclass ``kind``.

    Raises SettingsError naming a key that ``kind`` does not have.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    sources = dict.fromkeys(known, "default")
    for layer in layers:
        for name, value in layer.values.items():
            if name not in known:
                raise SettingsError(
                    f"Unknown setting {name}", found=f"in {layer.source}", remedy=f"one of {', '.join(known)}"
                )
            if value is not None:
                values[name], sources[name] = value, layer.source
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise SettingsError(f"No value for {', '.join(missing)}", remedy="set it by a flag")
    return Resolved(kind(**values), sources)


def parse_tokens(text: str, named: str = "A context") -> int:
    """A number of tokens: ``393216``, ``384k`` or ``1m`` (binary). Raises SettingsError on ``named``."""
    cleaned = text.strip().lower().replace(",", "").replace("_", "")
    scale = {"k": 1024, "m": 1024**2}.get(cleaned[-1:], 1)
    digits = cleaned[:-1] if scale > 1 else cleaned
    try:
        tokens = round(float(digits) * scale) if scale > 1 else int(digits)
    except (ValueError, OverflowError):
        tokens = 0
    if tokens < 1:
        raise SettingsError(f"{named} is a number of tokens", found=repr(text), remedy="393216, 384k or 1m")
    return tokens
