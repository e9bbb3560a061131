"""Reasoning formats: how a model marks the part of its output that is not the answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning between two tags."""

    name: str
    open_tag: str
    close_tag: str


THINK = ReasoningFormat("think", "<think>", "</think>")
