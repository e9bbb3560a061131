"""A recipe's profiles: inheritance between them, and which one is the default."""

from __future__ import annotations

from typing import Any

from tandem.core.errors import SettingsError
from tandem.recipes.schema import Profile, Recipe

_OWN = {"name", "default", "extends", "notes", "untested"}
"""Never taken from the profile that another one extends."""


def default_profile(recipe: Recipe) -> Profile:
    """The profile marked as default, else the first."""
    return next((profile for profile in recipe.profiles if profile.default), recipe.profiles[0])


def named_profile(recipe: Recipe, name: str | None) -> Profile:
    """The profile of that name, or the default for None. Raises SettingsError naming those there are."""
    if name is None:
        return default_profile(recipe)
    for profile in recipe.profiles:
        if profile.name == name:
            return profile
    raise SettingsError(
        f"No profile {name!r} in recipe {recipe.id}",
        found=", ".join(profile.name for profile in recipe.profiles),
        remedy=f"--profile {default_profile(recipe).name}",
    )


def effective_profile(recipe: Recipe, profile: Profile) -> Profile:
    """The profile with everything it takes over from those it extends, nearest first."""
    if profile.extends is None:
        return profile
    fields: dict[str, Any] = {key: getattr(profile, key) for key in profile.model_fields_set}
    seen = {profile.name}
    parent_name: str | None = profile.extends
    while parent_name is not None:
        if parent_name in seen:
            raise SettingsError(f"Profile {profile.name!r} of recipe {recipe.id} extends itself")
        seen.add(parent_name)
        parent = named_profile(recipe, parent_name)
        for key in parent.model_fields_set - _OWN:
            fields.setdefault(key, getattr(parent, key))
        parent_name = parent.extends
    return Profile.model_construct(_fields_set=set(fields), **fields)
