"""Measured numbers and confirmations: who saw what, in which configuration, when, and where it is written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tandem.recipes.values import Document, PartialDate, Slug, Text, Url

Metric = Literal[
    "decode", "prefill", "ttft", "vram", "power", "kv_pool", "kernel_time", "prefill_change", "quality"
]
Method = Literal["client", "server", "nvidia-smi", "agent", "benchmark", "unknown"]
Outcome = Literal["boots", "serves", "number", "fails", "disputes"]

METRIC_UNITS: dict[Metric, tuple[str, ...]] = {
    "decode": ("tok/s",),
    "prefill": ("tok/s",),
    "ttft": ("s",),
    "vram": ("GiB", "MiB", "GB"),
    "power": ("W",),
    "kv_pool": ("tokens",),
    "kernel_time": ("ms/token",),
    "prefill_change": ("%",),
    "quality": ("%", "score"),
}
"""The units a metric may be written in; the first is the one it is compared in."""


class Workload(Document):
    """What was asked of the server while the number was taken. ``label`` is the source's own word for it."""

    label: str | None = None
    text_class: Literal["easy", "hard", "structured", "code", "prose", "mixed", "synthetic"] | None = None
    prompt_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, ge=1)
    cache: Literal["cold", "repeat", "follow_up"] | None = None


class Artifact(Document):
    """A kept record of the run."""

    url: Url | None = None
    path: str | None = None
    sha256: str | None = None


class Machine(Document):
    """The facts of the machine a number or a confirmation comes from, as far as they were told."""

    card: str | None = None
    cards: int | None = Field(default=None, ge=0)
    sold_gib: float | None = None
    exposed_gib: float | None = None
    driver: str | None = None
    link: str | None = None
    cpu: str | None = None
    ram_gib: float | None = None
    os: str | None = None
    note: str | None = None


class Measurement(Document):
    """One number. Its configuration is the profile, changed by each of ``deviations``.

    ``value`` is a point; ``low`` and ``high`` a range. A missing unit, author, date or source is kept as
    missing, and named by the lint.
    """

    id: Slug
    metric: Metric
    value: float | None = Field(default=None, allow_inf_nan=False)
    low: float | None = Field(default=None, allow_inf_nan=False)
    high: float | None = Field(default=None, allow_inf_nan=False)
    candidates: tuple[float, ...] = ()
    """Possible values of a number that the source does not join to this recipe."""
    approximate: bool = False
    unit: str | None = None
    stat: Literal["median", "mean", "best", "single", "idle", "peak"] | None = None
    runs: int | None = Field(default=None, ge=1)
    scope: Literal["stream", "aggregate"] | None = None
    card_index: int | None = Field(default=None, ge=0)
    profile: str | None = None
    deviations: tuple[Text, ...] = ()
    workload: Workload | None = None
    machine: Machine | None = None
    by: str | None = None
    date: PartialDate | None = None
    posted: PartialDate | None = None
    """When it was published, where the day of the run is not told."""
    method: Method = "unknown"
    artifact: Artifact | None = None
    source: Slug | None = None
    """An id of the recipe's sources."""
    note: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Measurement:
        if self.value is not None and (self.low is not None or self.high is not None):
            raise ValueError("give either value or low and high")
        if (self.low is None) != (self.high is None):
            raise ValueError("a range needs low and high")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low is above high")
        if self.candidates and self.span is not None:
            raise ValueError("candidates are for a number without a value")
        return self

    @property
    def span(self) -> tuple[float, float] | None:
        """(low, high) in the written unit; equal for a point; None when no value is stated."""
        if self.value is not None:
            return self.value, self.value
        if self.low is not None and self.high is not None:
            return self.low, self.high
        return None

    @property
    def when(self) -> str | None:
        """The date of the run, else of its publication."""
        return self.date or self.posted

    def text(self) -> str:
        """``about 60 tok/s``, ``-5 to -2 %``, ``unresolved: 107.67 or 442.1 tok/s``, or nothing."""
        unit = f" {self.unit}" if self.unit else ""
        if self.span is None:
            return (
                "unresolved: " + " or ".join(f"{v:,g}" for v in self.candidates) + unit
                if self.candidates
                else ""
            )
        low, high = self.span
        number = f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"
        return ("about " if self.approximate else "") + number + unit


class Confirmation(Document):
    """Somebody's word that the recipe does, or does not, do what it says on their machine.

    ``independent``: by someone other than the recipe's author. ``resolved`` closes a dispute or a failure.
    """

    id: Slug | None = None
    by: Text
    date: PartialDate
    outcome: Outcome | None = None
    """None where the source only says "reproduced"."""
    profile: str | None = None
    revision: int | None = Field(default=None, ge=1)
    machine: Machine = Machine()
    independent: bool = True
    measurement: Slug | None = None
    measurements: tuple[Measurement, ...] = ()
    """Numbers that come with the confirmation; they join the recipe's own."""
    resolved: PartialDate | None = None
    source: Slug | None = None
    url: Url | None = None
    note: str | None = None


class UserConfirmation(Document):
    """One file of the user's confirmations folder."""

    schema_version: Literal[1]
    recipe: Slug
    confirmation: Confirmation
