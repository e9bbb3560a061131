"""What every tool-call format provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tandem.text.tools.schema import ToolSpec


class CallStatus(Enum):
    READING = "reading"
    DONE = "done"
    """A whole call; ``rest`` is the text behind it."""
    REJECTED = "rejected"
    """Not a call of a declared tool: the text belongs to the message."""


class CallParser(ABC):
    """Reads one call from text that arrives in pieces, beginning right after the format's start marker.

    ``name`` is set as soon as a declared tool's whole name is known; a parser with a name never rejects.
    Argument text returned by ``feed`` and ``end``, joined, is one JSON object when the call is DONE and not
    yet one before. What is returned in all does not depend on how the text was cut.
    """

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        self.status = CallStatus.READING
        self.name: str | None = None
        self.rest = ""
        self._tools = tools
        self._text = ""
        self._ended = False
        self._output: list[str] = []
        self._steps = self._read()

    def feed(self, text: str) -> str:
        """Take more text; returns the JSON text of arguments that became certain."""
        self._text += text
        return self._advance()

    def end(self) -> str:
        """The model ended its message here: complete the call if what is missing is only closing tags."""
        self._ended = True
        return self._advance()

    def _advance(self) -> str:
        if self.status is CallStatus.READING:
            next(self._steps, None)
        if self.status is CallStatus.DONE:
            self.rest, self._text = self._text, ""
        output = "".join(self._output)
        self._output.clear()
        return output

    @abstractmethod
    def _read(self) -> Iterator[None]:
        """Work through ``_text``; yield when more is needed, return when ``status`` is decided."""


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """One call of one tool as Lark rules, the first of which is named ``rule``."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How one family of models writes tool calls."""

    name: str
    start_markers: tuple[str, ...]
    """Any of these begins a call."""
    tags: tuple[str, ...]
    """All of the format's tags: read even where they are control tokens."""
    parser: Callable[[Mapping[str, ToolSpec]], CallParser]
    grammar: Callable[[ToolSpec, str], CallGrammar]
    """Rules for one call of a tool; the second argument is a prefix for rule names."""
    write_call: Callable[[str, Mapping[str, Any]], str]
    """A call as a model of this format writes it."""
    separator: str = ""
    """Written between two calls."""
    opening: str = ""
    closing: str = ""
    """Written once around all calls; the separator between them is then a must."""
    short_ids: bool = False
    """Ids of calls must be nine letters or digits: the templates refuse a history with others."""
    bare_start: str | None = None
    """At the very beginning of the content, this begins a call too (and is part of it)."""
