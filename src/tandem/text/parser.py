"""Splits a message's text into reasoning, content and tool calls while it arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tandem.text.reasoning import ReasoningFormat
from tandem.text.scan import find_first, held_suffix, may_begin
from tandem.text.tools.base import CallParser, CallStatus, ToolFormat
from tandem.text.tools.schema import ToolSpec


@dataclass(frozen=True, slots=True)
class TextEvent:
    channel: Literal["content", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """``name`` is set on a call's first event, ``done`` on its last."""

    arguments: str
    name: str | None = None
    done: bool = False


Event = TextEvent | CallEvent


class _Mode(Enum):
    START = "start"
    """Nothing but whitespace so far: an opening tag may come."""
    REASONING = "reasoning"
    CONTENT = "content"


class MessageParser:
    """Feed it text in any pieces; the events, joined, do not depend on the pieces.

    Reasoning is one block at the very beginning, opened by the model or (``starts_in_reasoning``) by the
    prompt. A later tag is ordinary text. A whole call of a declared tool inside reasoning ends the reasoning;
    a call of a tool that is not declared is ordinary text. Whitespace at the borders of the reasoning block
    belongs to the tags and is left out.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None,
        starts_in_reasoning: bool,
        tool_format: ToolFormat | None,
        tools: Mapping[str, ToolSpec],
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._format = tool_format if tools else None
        self._call_markers = self._format.start_markers if self._format else ()
        self._bare_start = (self._format.bare_start if self._format else None) or ""
        self._after_start = _Mode.REASONING if reasoning and starts_in_reasoning else _Mode.CONTENT
        self._mode = _Mode.START if reasoning else self._after_start
        self._text = ""
        self._events: list[Event] = []
        self._call: CallParser | None = None
        self._call_raw: list[str] = []
        """The call's text as long as it may turn out to be none."""
        self._call_events: list[CallEvent] = []
        self._call_announced = False
        self._cut_off = False
        self._trim_start = False
        """Leave out whitespace up to the next visible character."""
        self._reasoning_space = ""
        """Whitespace at the end of the reasoning so far: shown only if more reasoning follows."""
        self._bare_start_possible = True
        self._stray_close = False
        """Reasoning ended at a call, so its closing tag may still come."""

    @property
    def in_reasoning(self) -> bool:
        return self._mode is _Mode.REASONING or (
            self._mode is _Mode.START and self._after_start is _Mode.REASONING
        )

    def feed(self, text: str) -> list[Event]:
        self._text += text
        self._work(final=False)
        return self._take_events()

    def finish(self, *, by_model: bool) -> list[Event]:
        """No more text comes. ``by_model``: the model ended the message itself, so that what looks like the
        beginning of a tag is text and a call may lack its closing tags; otherwise it was cut off, and both
        are dropped."""
        self._cut_off = not by_model
        while True:
            if self._call is not None and by_model:
                self._advance_call(self._call, self._call.end())
            if self._call is not None:
                self._abandon_call(by_model)
            self._work(final=True)
            if self._call is None:
                break
        held, self._text = self._text, ""
        if by_model:
            self._emit_text(held)
        if self._mode is _Mode.REASONING and self._reasoning_space:
            self._events.append(TextEvent("reasoning", self._reasoning_space))
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _work(self, *, final: bool) -> None:
        """Consume ``_text`` as far as it is certain."""
        while self._text or self._mode is _Mode.START:
            if self._call is not None:
                text, self._text = self._text, ""
                if self._call.name is None or self._mode is _Mode.REASONING:
                    self._call_raw.append(text)
                self._advance_call(self._call, self._call.feed(text))
                if self._call is not None:
                    return
            elif self._mode is _Mode.START:
                if not self._leave_start(final):
                    return
            elif not self._scan(final):
                return

    def _leave_start(self, final: bool) -> bool:
        assert self._reasoning is not None
        visible = self._text.lstrip()
        if visible.startswith(self._reasoning.open_tag):
            self._text = visible[len(self._reasoning.open_tag) :]
            self._mode, self._trim_start = _Mode.REASONING, True
        elif not final and may_begin(visible, (self._reasoning.open_tag,)):
            return False
        elif self._cut_off and visible and may_begin(visible, (self._reasoning.open_tag,)):
            self._text, self._mode = "", self._after_start
        else:
            self._mode = self._after_start
            self._trim_start = self._mode is _Mode.REASONING
        return True

    def _scan(self, final: bool) -> bool:
        """One step through plain text; False when more is needed."""
        if self._trim_start:
            self._text = self._text.lstrip()
            if not self._text:
                return False
            self._trim_start = False
        if self._mode is _Mode.CONTENT and self._bare_start_possible and self._bare_start:
            if not self._text.strip() and not final:
                return False
            if self._start_bare_call():
                return True
        markers = list(self._call_markers)
        if self._reasoning and (self._mode is _Mode.REASONING or self._stray_close):
            markers.append(self._reasoning.close_tag)
        found = find_first(self._text, markers)
        if found is None:
            end = len(self._text) - held_suffix(self._text, markers)
            self._emit_text(self._text[:end])
            self._text = self._text[end:]
            return False
        at, marker = found
        self._emit_text(self._text[:at])
        self._text = self._text[at + len(marker) :]
        if marker in self._call_markers:
            self._open_call(marker)
        else:
            self._end_reasoning()
            self._stray_close = False
        return True

    def _end_reasoning(self) -> None:
        self._mode, self._trim_start, self._reasoning_space = _Mode.CONTENT, True, ""

    def _emit_text(self, text: str) -> None:
        if not text:
            return
        if self._mode is _Mode.REASONING:
            text = self._reasoning_space + text
            visible = text.rstrip()
            self._reasoning_space = text[len(visible) :]
            if visible:
                self._events.append(TextEvent("reasoning", visible))
        else:
            self._bare_start_possible = False
            self._events.append(TextEvent("content", text))

    def _start_bare_call(self) -> bool:
        visible = self._text.lstrip()
        if not visible.startswith(self._bare_start):
            return False
        space = self._text[: len(self._text) - len(visible)]
        self._text = visible
        self._open_call(space)
        return True

    def _open_call(self, marker: str) -> None:
        assert self._format is not None
        self._call = self._format.parser(self._tools)
        self._call_raw = [marker]
        self._call_events, self._call_announced = [], False
        self._bare_start_possible = False

    def _advance_call(self, call: CallParser, arguments: str) -> None:
        """Turn the call's progress into events: at once in content, after its end inside reasoning."""
        if call.status is CallStatus.REJECTED:
            self._reject_call()
            return
        done = call.status is CallStatus.DONE
        if call.name is not None and (arguments or done or not self._call_announced):
            name = None if self._call_announced else call.name
            self._call_events.append(CallEvent(arguments, name, done))
            self._call_announced = True
        if done and self._mode is _Mode.REASONING:
            self._end_reasoning()
            self._stray_close = True
        if self._mode is _Mode.CONTENT:
            self._events += self._call_events
            self._call_events = []
        if done:
            self._text, self._call = call.rest, None

    def _reject_call(self) -> None:
        """The start marker is text after all; look at what follows it afresh."""
        raw, self._call = "".join(self._call_raw), None
        marker = next((marker for marker in self._call_markers if raw.startswith(marker)), raw[:1])
        self._emit_text(marker)
        self._text = raw[len(marker) :]

    def _abandon_call(self, by_model: bool) -> None:
        """The text ended inside a call."""
        assert self._call is not None
        call, self._call = self._call, None
        if self._mode is _Mode.REASONING:
            self._call_markers = ()
            self._text = "".join(self._call_raw)
        elif call.name is None and by_model:
            self._emit_text("".join(self._call_raw))
