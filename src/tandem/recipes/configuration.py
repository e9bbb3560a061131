"""A profile as a complete configuration, every value with where it comes from.

default < recipe < profile < file < environment < flag. Unknown keys are errors wherever they are written.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tandem.core.errors import SettingsError
from tandem.core.settings import parse_flag
from tandem.recipes.profiles import effective_profile, named_profile
from tandem.recipes.schema import Recipe

Layer = Literal["default", "recipe", "profile", "file", "environment", "flag"]
Value = str | int | bool | None
ENVIRONMENT_PREFIX = "TANDEM_SERVE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. ``kind`` says how text is read; ``choices`` closes it."""

    key: str
    kind: Literal["text", "count", "switch"]
    default: Value
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("model", "text", None, "folder, GGUF file or repository of the weights"),
    Setting("revision", "text", None, "revision of the repository"),
    Setting("cards", "text", None, "cards to use, such as cuda:2 or cpu:1"),
    Setting("layout", "text", "layer_split", "how the layers lie over the cards", ("single", "layer_split")),
    Setting("split", "text", None, "layers for each card, instead of the planner's cut"),
    Setting("head_card", "count", None, "card of the LM head, instead of the planner's choice"),
    Setting("context_tokens", "count", None, "longest request, prompt and answer together"),
    Setting("cache_tokens", "count", None, "tokens the cache holds for all requests together"),
    Setting("kv", "text", "fp16", "format of the cache", ("fp16", "q8", "q4")),
    Setting("index_keys", "text", "pooled", "what the indexer keeps of each token", ("raw", "pooled")),
    Setting("slots", "count", 4, "requests at once"),
    Setting("chunk_tokens", "count", 2048, "prompt tokens multiplied together"),
    Setting("drafter", "text", "none", "speculation", ("none", "mtp", "dflash2", "ngram")),
    Setting("draft_repo", "text", None, "weights of the drafter"),
    Setting("draft_revision", "text", None, "revision of the drafter's weights"),
    Setting("draft_tokens", "count", None, "tokens drafted at once, instead of the drafter's own number"),
    Setting("margin_mib", "count", 256, "memory left alone on each card"),
    Setting("prefix_reuse", "text", "exact", "reuse of earlier prompts", ("exact", "fast", "off")),
    Setting("host", "text", "127.0.0.1", "address to listen on"),
    Setting("port", "count", 8012, "port to listen on"),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Resolved:
    """One value and the layer it comes from; ``origin`` names the place, such as a file or a variable."""

    key: str
    value: Value
    layer: Layer
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """Complete: every key of ``SETTINGS`` occurs once, in that order."""

    recipe: str
    profile: str
    values: tuple[Resolved, ...]

    def __getitem__(self, key: str) -> Value:
        return next(item.value for item in self.values if item.key == key)

    def lines(self) -> list[str]:
        """One line a key, for printing at the start: ``kv = q8  (profile q8_384k)``."""
        width = max(len(item.key) for item in self.values)
        return [f"{item.key:<{width}} = {_shown(item.value)}  ({item.origin})" for item in self.values]


def resolve(
    recipe: Recipe,
    profile: str | None = None,
    *,
    file: tuple[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Configuration:
    """Lay the layers over each other.

    ``file`` is (its name, its keys); ``environment`` the variables that start with ``ENVIRONMENT_PREFIX``;
    ``flags`` only those the user gave. Raises SettingsError for unknown keys, values that cannot be, and a
    profile that there is none of.
    """
    chosen = named_profile(recipe, profile)
    found = {
        setting.key: Resolved(setting.key, setting.default, "default", "default") for setting in SETTINGS
    }

    def lay(values: Mapping[str, object], layer: Layer, origin: str) -> None:
        for key, value in values.items():
            setting = BY_KEY.get(key)
            if setting is None:
                close = difflib.get_close_matches(key, BY_KEY, n=3, cutoff=0.5)
                raise SettingsError(f"{origin}: no setting {key!r}", remedy=", ".join(close or BY_KEY))
            if value is not None:
                found[key] = Resolved(key, _read(setting, value, origin), layer, origin)

    lay(recipe_values(recipe), "recipe", f"recipe {recipe.id}")
    lay(profile_values(recipe, chosen.name), "profile", f"profile {chosen.name}")
    if file is not None:
        lay(file[1], "file", file[0])
    for variable, text in (environment or {}).items():
        lay({variable.removeprefix(ENVIRONMENT_PREFIX).lower(): text}, "environment", variable)
    for key, value in (flags or {}).items():
        lay({key: value}, "flag", f"--{key.replace('_', '-')}")
    return Configuration(recipe.id, chosen.name, tuple(found[setting.key] for setting in SETTINGS))


def recipe_values(recipe: Recipe) -> dict[str, Value]:
    """What the recipe as a whole says about Tandem's settings."""
    count = recipe.hardware.count.value
    return {
        "model": recipe.quant.repo.value,
        "revision": recipe.quant.revision.value,
        "cards": None if count is None else f"cuda:{count}",
        "layout": recipe.topology.layout.value,
    }


def profile_values(recipe: Recipe, name: str) -> dict[str, Value]:
    """What one profile says, its drafter's weights included."""
    profile = effective_profile(recipe, named_profile(recipe, name))
    drafter = next((item for item in recipe.drafters if item.kind == profile.drafter), None)
    return {
        "context_tokens": profile.max_request_tokens.value,
        "cache_tokens": profile.cache_tokens.value or profile.pool_tokens.value,
        "kv": profile.kv.value,
        "index_keys": profile.index_keys,
        "slots": profile.slots.value,
        "chunk_tokens": profile.chunk_tokens,
        "head_card": profile.head_card,
        "margin_mib": profile.margin_mib,
        "drafter": profile.drafter,
        "draft_repo": None if drafter is None else drafter.repo,
        "draft_revision": None if drafter is None else drafter.revision,
        "draft_tokens": profile.draft_tokens,
    }


def _read(setting: Setting, value: object, origin: str) -> Value:
    if setting.kind == "switch":
        return value if isinstance(value, bool) else parse_flag(f"{origin}: {setting.key}", str(value))
    if setting.kind == "count":
        return _count(setting, value, origin)
    if not isinstance(value, str):
        raise SettingsError(f"{origin}: {setting.key} must be text", found=repr(value))
    if setting.choices is not None and value not in setting.choices:
        wanted = ", ".join(setting.choices)
        raise SettingsError(f"{origin}: {setting.key} must be one of {wanted}", found=value)
    return value


def _count(setting: Setting, value: object, origin: str) -> int:
    text = str(value).strip().lower().replace(",", "").replace("_", "")
    scale = 1024 if text.endswith("k") else 1
    digits = text.removesuffix("k")
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit() and len(digits) <= 12):
        raise SettingsError(f"{origin}: {setting.key} must be a whole number", found=repr(value))
    return int(digits) * scale


def _shown(value: Value) -> str:
    return "not set" if value is None else str(value)
