"""Scalars of the schema: values that may be unknown, partial dates, slugs, links.

A file may write any ``Stated`` field as a plain scalar, as ``null`` (not stated), as ``n/a`` (cannot apply)
or as a mapping ``{value, raw, basis, candidates}`` that keeps what a source said word for word.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_serializer, model_validator

NOT_APPLICABLE = "n/a"

Basis = Literal["stated", "inferred", "unresolved", "not_applicable"]
"""How a value is known: said by a source, concluded by the transcriber, several candidates, cannot apply."""

Scalar = TypeVar("Scalar", bound=str | int | float | bool, covariant=True)


class Document(BaseModel):
    """Base of every schema class: unknown keys are errors, nothing is converted, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Stated(Document, Generic[Scalar]):
    """A scalar together with how far it is known.

    ``value`` is None when the source does not state it; ``raw`` is the source's own wording. ``candidates``
    are the possible values of an unresolved field, None among them meaning "perhaps not stated at all".
    """

    value: Scalar | None = None
    raw: str | None = None
    basis: Basis = "stated"
    candidates: Annotated[tuple[Scalar | None, ...], Field(strict=False)] = ()
    approximate: bool = False
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_plain(cls, data: Any) -> Any:
        if isinstance(data, (dict, Stated)):
            return data
        if data == NOT_APPLICABLE:
            return {"basis": "not_applicable"}
        return {"value": data}

    @model_validator(mode="after")
    def _consistent(self) -> Stated[Scalar]:
        if self.candidates and self.basis != "unresolved":
            raise ValueError("candidates need 'basis: unresolved'")
        if self.basis == "unresolved" and (self.value is not None or not self.candidates):
            raise ValueError("'basis: unresolved' needs candidates and no value")
        if self.basis == "not_applicable" and self.value is not None:
            raise ValueError("a value that cannot apply must not be given")
        return self

    @model_serializer(mode="plain")
    def _to_plain(self) -> Any:
        """The shortest form that reads back as the same value."""
        if self.basis == "not_applicable" and self.raw is None and self.note is None:
            return NOT_APPLICABLE
        fields: dict[str, Any] = {}
        if self.value is not None:
            fields["value"] = self.value
        if self.raw is not None:
            fields["raw"] = self.raw
        if self.basis != "stated":
            fields["basis"] = self.basis
        if self.candidates:
            fields["candidates"] = list(self.candidates)
        if self.approximate:
            fields["approximate"] = True
        if self.note is not None:
            fields["note"] = self.note
        if not fields:
            return None
        return fields["value"] if set(fields) == {"value"} else fields

    @property
    def stated_candidates(self) -> tuple[Scalar, ...]:
        return tuple(value for value in self.candidates if value is not None)

    def text(self, unit: str = "") -> str:
        """What a reader sees: the source's wording if kept, else the value, else why there is none."""
        if self.raw is not None:
            return self.raw
        if self.value is not None:
            suffix = f" {unit}" if unit else ""
            return ("about " if self.approximate else "") + plain_text(self.value) + suffix
        if self.basis == "not_applicable":
            return NOT_APPLICABLE
        if self.candidates:
            options = " or ".join(
                "not stated" if value is None else plain_text(value) for value in self.candidates
            )
            return f"unresolved: {options}"
        return ""


def plain_text(value: str | int | float | bool) -> str:
    """``plain_text(392960) == '392,960'``, ``plain_text(3.05) == '3.05'``, ``plain_text(True) == 'yes'``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,}"
    return value


_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")


def date_span(text: str) -> tuple[int, int]:
    """The days [start, end) a partial date covers, as proleptic ordinals. Raises ValueError for no date.

    ``date_span("2026-10")`` is 1 October to 1 November 2026.
    """
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date; write YYYY, YYYY-MM or YYYY-MM-DD")
    year, month, day = (None if part is None else int(part) for part in match.groups())
    assert year is not None
    try:
        if month is None:
            return dt.date(year, 1, 1).toordinal(), dt.date(year, 12, 31).toordinal() + 1
        if day is None:
            last = calendar.monthrange(year, month)[1]
            return dt.date(year, month, 1).toordinal(), dt.date(year, month, last).toordinal() + 1
        start = dt.date(year, month, day).toordinal()
    except (ValueError, calendar.IllegalMonthError) as error:
        raise ValueError(f"{text!r} is no date of the calendar") from error
    return start, start + 1


def _checked_date(text: str) -> str:
    date_span(text)
    return text


def _checked_slug(text: str) -> str:
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,79}", text) is None:
        raise ValueError("must be lower-case letters, digits, '.', '_' and '-', at most 80 of them")
    if text.endswith((".json", ".yaml", ".cff", ".csv", ".jsonl")):
        raise ValueError("must not end like a file name; the page's own address uses these endings")
    return text


def _checked_url(text: str) -> str:
    if re.fullmatch(r"https?://[^\s<>\"'\\]{1,2000}", text) is None:
        raise ValueError("must be an http or https address")
    return text


PartialDate = Annotated[str, AfterValidator(_checked_date)]
"""``2026``, ``2026-10`` or ``2026-10-20``; the precision is kept."""
Slug = Annotated[str, AfterValidator(_checked_slug)]
Url = Annotated[str, AfterValidator(_checked_url)]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
MaybeText = Stated[str]
MaybeInt = Stated[int]
MaybeFloat = Stated[float]
