"""``--recipe``, ``--profile`` and ``--config`` of ``tandem serve``: settings, each with its source."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.cards import parse_cards
from tandem.core.errors import ModelNotFoundError, SettingsError
from tandem.core.options import SettingsLayer
from tandem.core.settings import Environment
from tandem.planner.fit import parse_split

DEFAULT_RECIPE = "glm53-flash-2x64-layer-split"
"""What ``--profile`` alone means."""
DEMO_RECIPE = "smollm2-135m-demo"
"""What ``--config`` alone lies over: the model that ``tandem serve`` alone serves."""

_LOAD_KEYS = {
    "context_tokens": "context_tokens",
    "cache_tokens": "pool_tokens",
    "cache_format": "cache_format",
    "max_running": "max_running",
    "chunk_tokens": "chunk_tokens",
    "prefix_reuse": "prefix_reuse",
}
_SERVER_KEYS = ("host", "port")
_DEFAULT_OF_RECIPES = "default"


@dataclass(frozen=True, slots=True)
class RecipeSettings:
    """``load`` and ``server`` are layers below the flags; ``lines`` print the resolved configuration."""

    load: tuple[SettingsLayer, ...]
    server: tuple[SettingsLayer, ...]
    lines: tuple[str, ...]
    notices: tuple[str, ...]


def recipe_settings(
    recipe_id: str | None,
    profile: str | None,
    flags: Mapping[str, object],
    environment: Environment,
    *,
    file: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> RecipeSettings:
    """Resolve a recipe and profile under the flags given (names of ``ServeSettings``; None = not given).

    Between profile and flags lie the settings of ``file`` and then ``variables`` (``TANDEM_SERVE_*``).

    Raises ModelNotFoundError for a recipe there is none of, SettingsError for unknown profiles and values.
    """
    from tandem.loader.demo import DEMO_MODEL
    from tandem.recipes.configuration import resolve
    from tandem.recipes.files import load_catalogue

    loaded = load_catalogue(environment.data_dir)
    wanted = recipe_id or (DEMO_RECIPE if profile is None and file is not None else DEFAULT_RECIPE)
    held = loaded.recipes.get(wanted)
    if held is None:
        raise ModelNotFoundError(
            f"There is no recipe {wanted!r}",
            found=", ".join(sorted(loaded.recipes)),
            remedy="tandem recipes ls",
        )
    given = {key: value for key, value in flags.items() if value is not None}
    layer = None if file is None else read_settings_file(file)
    configuration = resolve(held.recipe, profile, file=layer, environment=variables, flags=given)
    settings, sources = configuration.settings, configuration.sources

    def stated(key: str) -> bool:
        return sources[key] != _DEFAULT_OF_RECIPES and getattr(settings, key) is not None

    load = [
        SettingsLayer(sources[key], {name: getattr(settings, key)})
        for key, name in _LOAD_KEYS.items()
        if stated(key)
    ]
    # The demo model is no repository: serving none in particular serves it, by its own pinned download.
    if stated("model") and settings.model != DEMO_MODEL.project:
        revision = f"@{settings.revision}" if stated("revision") and "@" not in str(settings.model) else ""
        load.append(SettingsLayer(sources["model"], {"model": f"{settings.model}{revision}"}))
    if stated("cards"):
        load.append(SettingsLayer(sources["cards"], {"cards": parse_cards(str(settings.cards))}))
    if stated("split"):
        load.append(SettingsLayer(sources["split"], {"split": parse_split(str(settings.split))}))
    server = [SettingsLayer(sources[key], {key: getattr(settings, key)}) for key in _SERVER_KEYS]
    notices = []
    if settings.drafter != "none":
        notices.append(
            f"drafter {settings.drafter} ({sources['drafter']}): this version does not speculate yet; "
            "answers are the same without, only slower"
        )
    return RecipeSettings(
        tuple(load),
        tuple(server),
        (f"recipe {configuration.recipe}, profile {configuration.profile}", *configuration.lines()),
        tuple(notices),
    )


def read_settings_file(path: Path) -> SettingsLayer:
    """A YAML mapping of ``ServeSettings`` keys.

    Raises SettingsError for a file that cannot be read and RecipeFileError naming file, line and key.
    """
    from tandem.recipes.configuration import KEYS
    from tandem.recipes.yaml_lines import RecipeFileError, read_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {path} cannot be read", found=str(error)) from error
    documents = read_yaml(text, str(path))
    if not documents:
        return SettingsLayer(str(path), {})
    located = documents[0]
    if len(documents) > 1 or not isinstance(located.data, dict):
        raise RecipeFileError(str(path), 1, "", "one mapping of settings was expected", "context_tokens: 64k")
    for key in located.data:
        if key not in KEYS:
            near = ", ".join(difflib.get_close_matches(key, KEYS)) or ", ".join(KEYS)
            raise RecipeFileError(
                str(path), located.line_of((key,)), key, "there is no such setting", f"one of {near}"
            )
    return SettingsLayer(str(path), located.data)
