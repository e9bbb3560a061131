"""A profile as a complete configuration, every value with where it comes from.

default < recipe < profile < file < environment < flag. Unknown keys are errors wherever they are written.
Option names are those of ``core.options.LoadOptions`` wherever both have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tandem.core.errors import SettingsError
from tandem.core.options import PREFIX_REUSE, SettingsLayer, parse_tokens, resolve_options
from tandem.core.settings import SERVE_PREFIX
from tandem.recipes.profiles import effective_profile, named_profile
from tandem.recipes.schema import Recipe


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything a served recipe is set by. None = chosen when the model is known."""

    model: str | None = None
    """A folder, a GGUF file or ``org/name``."""
    revision: str | None = None
    cards: str | None = None
    layout: str = "layer_split"
    split: str | None = None
    """Layers per card, instead of the planner's cut."""
    head_card: int | None = None
    context_tokens: int | None = None
    cache_tokens: int | None = None
    """Tokens the cache holds for all requests together."""
    cache_format: str | None = None
    index_keys: str = "pooled"
    """What the sparse-attention indexer keeps of each token: the pooled keys, or the raw ones too."""
    max_running: int = 8
    chunk_tokens: int | None = None
    drafter: str = "none"
    draft_repo: str | None = None
    draft_revision: str | None = None
    draft_tokens: int | None = None
    margin_mib: int = 256
    """Memory left alone on each card."""
    prefix_reuse: str = "exact"
    host: str = "127.0.0.1"
    port: int = 8000


CHOICES: dict[str, tuple[str, ...]] = {
    "layout": ("single", "layer_split"),
    "cache_format": ("fp32", "fp16", "bf16", "q8", "q6", "q4"),
    "index_keys": ("raw", "pooled"),
    "drafter": ("none", "mtp", "dflash2", "ngram"),
    "prefix_reuse": PREFIX_REUSE,
}
KEYS = tuple(field.name for field in fields(ServeSettings))
_TOKEN_COUNTS = ("context_tokens", "cache_tokens", "chunk_tokens")
_COUNTS = tuple(field.name for field in fields(ServeSettings) if "int" in str(field.type))


@dataclass(frozen=True, slots=True)
class Configuration:
    """Complete: every key of ``ServeSettings`` has a value and a source."""

    recipe: str
    profile: str
    settings: ServeSettings
    sources: Mapping[str, str]

    def lines(self) -> list[str]:
        """One line a key, for printing at the start: ``cache_format = q8  (profile q8_384k)``."""
        width = max(map(len, KEYS))
        return [
            f"{key:<{width}} = {_shown(getattr(self.settings, key))}  ({self.sources[key]})" for key in KEYS
        ]

    def as_dict(self) -> dict[str, dict[str, object]]:
        """``{key: {"value": …, "source": …}}``"""
        return {key: {"value": getattr(self.settings, key), "source": self.sources[key]} for key in KEYS}


def resolve(
    recipe: Recipe,
    profile: str | None = None,
    *,
    file: SettingsLayer | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Configuration:
    """Lay the layers over each other.

    ``environment`` are variables that start with ``SERVE_PREFIX``; ``flags`` only those the user gave.
    Raises SettingsError for unknown keys, values that cannot be, and a profile that there is none of.
    """
    layers = recipe_layers(recipe, profile)
    if file is not None:
        layers.append(file)
    for variable, text in (environment or {}).items():
        layers.append(SettingsLayer(variable, {variable.removeprefix(SERVE_PREFIX).lower(): text}))
    for key, value in (flags or {}).items():
        layers.append(SettingsLayer(f"--{key.replace('_', '-')}", {key: value}))
    read = [SettingsLayer(layer.source, _read(layer)) for layer in layers]
    resolved = resolve_options(ServeSettings, read)
    name = named_profile(recipe, profile).name
    return Configuration(recipe.id, name, resolved.options, resolved.sources)


def recipe_layers(recipe: Recipe, profile: str | None = None) -> list[SettingsLayer]:
    """What the recipe, and then its profile, set."""
    chosen = named_profile(recipe, profile)
    full = effective_profile(recipe, chosen)
    drafter = next((item for item in recipe.drafters if item.kind == full.drafter), None)
    count = recipe.hardware.count.value
    return [
        SettingsLayer(
            f"recipe {recipe.id}",
            {
                "model": recipe.quant.repo.value,
                "revision": recipe.quant.revision.value,
                "cards": None if count is None else f"cuda:{count}",
                "layout": recipe.topology.layout.value,
            },
        ),
        SettingsLayer(
            f"profile {chosen.name}",
            {
                "context_tokens": full.max_request_tokens.value,
                "cache_tokens": full.cache_tokens.value or full.pool_tokens.value,
                "cache_format": full.kv.value,
                "index_keys": full.index_keys,
                "max_running": full.slots.value,
                "chunk_tokens": full.chunk_tokens,
                "head_card": full.head_card,
                "margin_mib": full.margin_mib,
                "drafter": full.drafter,
                "draft_repo": None if drafter is None else drafter.repo,
                "draft_revision": None if drafter is None else drafter.revision,
                "draft_tokens": full.draft_tokens,
            },
        ),
    ]


def _read(layer: SettingsLayer) -> dict[str, object]:
    """Values in their own types; those of unknown keys as they are, for ``resolve_options`` to refuse."""
    read: dict[str, object] = {}
    for key, value in layer.values.items():
        if value is None or key not in KEYS:
            read[key] = value
        elif key in _COUNTS:
            read[key] = _count(key, value, layer.source)
        elif not isinstance(value, str):
            raise SettingsError(f"{layer.source}: {key} must be text", found=repr(value))
        elif value not in CHOICES.get(key, (value,)):
            wanted = ", ".join(CHOICES[key])
            raise SettingsError(f"{layer.source}: {key} must be one of {wanted}", found=value)
        else:
            read[key] = value
    return read


def _count(key: str, value: object, source: str) -> int:
    text = str(value).strip()
    if key in _TOKEN_COUNTS and not isinstance(value, bool):
        try:
            return parse_tokens(text)
        except SettingsError:
            raise SettingsError(
                f"{source}: {key} must be a number of tokens", found=repr(value), remedy="393216, 384k or 1m"
            ) from None
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise SettingsError(f"{source}: {key} must be a whole number", found=repr(value))
    return int(text)


def _shown(value: object) -> str:
    return "chosen at load" if value is None else str(value)
