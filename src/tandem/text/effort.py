"""Reasoning effort and thinking switches, translated to what a template takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tandem.core.errors import RequestError

_EFFORTS = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}
_SWITCHES = ("enable_thinking", "thinking")


def map_effort(effort: object) -> str:
    """One of low, high, max for any effort a client may name. Raises RequestError (400) for other words."""
    mapped = _EFFORTS.get(effort) if isinstance(effort, str) else None
    if mapped is None:
        raise RequestError(
            "Unknown reasoning_effort",
            param="reasoning_effort",
            found=repr(effort),
            remedy=", ".join(_EFFORTS),
        )
    return mapped


def resolve_template_kwargs(
    variables: Collection[str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What to render with, and notes about arguments this template does not take.

    ``variables`` are the names the template reads. Null values count as absent. A thinking switch reaches the
    template under the name it knows; where it knows none, switching off becomes the lowest effort, and the
    effort "none" becomes the switch where a template has no effort.
    """
    kwargs = {name: value for name, value in given.items() if value is not None}
    effort = kwargs.pop("reasoning_effort", None)
    mapped = None if effort is None else map_effort(effort)
    switches = [kwargs.pop(name) for name in _SWITCHES if name in kwargs]
    switch = switches[0] if switches else None
    known_switch = next((name for name in _SWITCHES if name in variables), None)
    notes = [f"{name} has no effect on this model" for name in kwargs if name not in variables]

    if known_switch is not None:
        if effort == "none" and switch is None and "reasoning_effort" not in variables:
            switch = False
        if switch is not None:
            kwargs[known_switch] = switch
    elif switch is False and "reasoning_effort" in variables:
        mapped = "low"
        notes.append("thinking cannot be switched off for this model; the lowest effort is used")
    elif switch is not None:
        notes.append("the thinking switch has no effect on this model")

    if "reasoning_effort" in variables:
        if mapped is not None:
            kwargs["reasoning_effort"] = mapped
    elif effort is not None and not (effort == "none" and known_switch is not None):
        notes.append("reasoning_effort has no effect on this model")
    return kwargs, tuple(notes)
