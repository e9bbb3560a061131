"""The model register: one canonical entry per model, with every name that sources use for it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tandem.recipes.schema import Source
from tandem.recipes.values import Document, MaybeFloat, MaybeInt, MaybeText, Slug, Stated, Text

ConfigValue = str | int | float | bool | tuple[int, ...]


class Statement(Document):
    """What one source says about the model, word for word."""

    text: Text
    source: Slug | None = None


class Geometry(Document):
    """What the planner needs when no checkpoint is at hand.

    ``config`` holds fields of the checkpoint's own config.json under their own names; ``bits`` the bits per
    weight by part, as far as known.
    """

    architecture: str
    config: dict[str, ConfigValue]
    bits: dict[str, float] = Field(default_factory=dict)
    source: Slug | None = None


class ModelEntry(Document):
    id: Slug
    name: Text
    aliases: tuple[Text, ...] = ()
    hf_id: MaybeText = Stated()
    kind: Stated[Literal["dense", "moe"]] = Stated()
    total_b: MaybeFloat = Stated()
    """Parameters, in 10^9."""
    active_b: MaybeFloat = Stated()
    layers: MaybeInt = Stated()
    inputs: tuple[Literal["text", "image", "video", "audio"], ...] = ()
    derived_from: Slug | None = None
    licence: MaybeText = Stated()
    geometry: Geometry | None = None
    statements: tuple[Statement, ...] = ()
    note: str | None = None


class Register(Document):
    """A models file. Several may be read; an id occurs once."""

    schema_version: Literal[1]
    models: tuple[ModelEntry, ...]
    sources: tuple[Source, ...] = ()
