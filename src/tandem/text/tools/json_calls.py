"""Calls written as a JSON object with ``name`` and ``arguments``: Hermes (``<tool_call>`` tags) and Llama 3.

The object is read as it arrives: the name in whole, then the text of the arguments as the model writes it
(control characters inside strings escaped). Members may come in any order; ``parameters`` is another word
for ``arguments``, and arguments may be a string that holds the object.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from tandem.text.scan import may_begin
from tandem.text.tools.base import CallGrammar, CallParser, CallStatus, ToolFormat
from tandem.text.tools.lark import lark_json, lark_string
from tandem.text.tools.schema import ToolSpec

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_ARGUMENTS = ("arguments", "parameters")
_OTHER_MEMBERS = ("id", "type")
_NUMBER_OR_WORD_ENDS = frozenset(",}] \t\r\n")
_SPACE = frozenset(" \t\r\n")


class NotACallError(Exception):
    """The text is no JSON object of a call."""


class _OutOfTextError(Exception):
    """The message ended inside the object."""


class JsonCallParser(CallParser):
    """See the module's description. ``closers`` may follow the object."""

    def __init__(self, tools: Mapping[str, ToolSpec], closers: tuple[str, ...]) -> None:
        super().__init__(tools)
        self._closers = closers
        self._at = 0
        self._arguments: list[str] = []
        """Argument text not yet handed out: all while the name is not known, then the last character."""

    def _read(self) -> Iterator[None]:
        try:
            yield from self._read_object()
        except NotACallError:
            if self.name is None:
                self.status = CallStatus.REJECTED
                return
        except _OutOfTextError:
            if self.name is None:
                self.status = CallStatus.REJECTED
            return
        if self.name is None:
            self.status = CallStatus.REJECTED
            return
        yield from self._read_closer()
        self.status = CallStatus.DONE

    def _read_object(self) -> Generator[None, None, None]:
        """One call, from its first character on; sets ``name``."""
        if (yield from self._next_mark()) != "{":
            raise NotACallError
        yield from self._read_members()

    def _read_members(self) -> Generator[None, None, None]:
        seen_arguments = False
        while (mark := (yield from self._next_mark())) != "}":
            if mark == ",":
                continue
            if mark != '"':
                raise NotACallError
            key = yield from self._string()
            if (yield from self._next_mark()) != ":":
                raise NotACallError
            first = yield from self._next_mark()
            if key == "name" and self.name is None:
                name = (yield from self._string()) if first == '"' else ""
                if name not in self._tools:
                    raise NotACallError
                self.name = name
                self._hand_out(0 if not seen_arguments else 1)
            elif key in _ARGUMENTS and not seen_arguments:
                seen_arguments = True
                yield from self._read_arguments(first)
            elif key in _OTHER_MEMBERS or self.name is not None:
                yield from self._drain(first)
            else:
                raise NotACallError
        if self.name is not None:
            self._hand_out(0)
            if not seen_arguments:
                self._output.append("{}")

    def _read_arguments(self, first: str) -> Generator[None, None, None]:
        if first == '"':
            self._arguments.append((yield from self._string()).strip() or "{}")
            return
        if first == "n":
            yield from self._drain(first)
            self._arguments.append("{}")
            return
        for piece in self._value(first):
            if piece is None:
                yield
                continue
            self._arguments.append(piece)
            if self.name is not None:
                self._hand_out(1)

    def _drain(self, first: str) -> Generator[None, None, None]:
        for piece in self._value(first):
            if piece is None:
                yield

    def _hand_out(self, keep: int) -> None:
        """Pass argument text on, except the last ``keep`` characters: the closing brace waits for the
        object's own, so that arguments are never complete in a call that is not."""
        text = "".join(self._arguments)
        cut = len(text) - keep
        self._output.append(text[:cut])
        self._arguments = [text[cut:]]

    def _read_closer(self) -> Generator[None, None, None]:
        """Skip what belongs to the call behind its object: superfluous braces, then a closing tag."""
        while True:
            behind = self._text[self._at :].lstrip(" \t\r\n}")
            found = next((closer for closer in self._closers if behind.startswith(closer)), None)
            if found is not None:
                self._text = behind[len(found) :]
                return
            if self._ended or not self._closers or not may_begin(behind, self._closers):
                self._text = behind if self._closers else self._text[self._at :]
                return
            yield

    def _next_character(self) -> Generator[None, None, str]:
        while self._at >= len(self._text):
            if self._ended:
                raise _OutOfTextError
            self._text, self._at = "", 0
            yield
        self._at += 1
        return self._text[self._at - 1]

    def _next_mark(self) -> Generator[None, None, str]:
        while (character := (yield from self._next_character())) in _SPACE:
            pass
        return character

    def _string(self) -> Generator[None, None, str]:
        """A JSON string's value; its opening quote has been read."""
        raw = ['"']
        while (character := (yield from self._next_character())) != '"':
            raw.append(character)
            if character == "\\":
                raw.append((yield from self._next_character()))
        try:
            value: str = json.loads("".join(raw) + '"', strict=False)
        except ValueError as error:
            raise NotACallError from error
        return value

    def _value(self, first: str) -> Iterator[str | None]:
        """The text of one JSON value whose first character has been read, in pieces; None = more needed."""
        depth, in_string, escaped = 0, False, False
        pieces: list[str] = []
        character = first
        while True:
            if in_string:
                if escaped:
                    escaped = False
                elif character == "\\":
                    escaped = True
                elif character == '"':
                    in_string = False
                elif character < " ":
                    character = json.dumps(character)[1:-1]
            elif character == '"':
                in_string = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
            pieces.append(character)
            if depth == 0 and not in_string and first in '{["':
                break
            if self._at >= len(self._text):
                yield "".join(pieces)
                pieces = []
                while self._at >= len(self._text):
                    if self._ended:
                        raise _OutOfTextError
                    self._text, self._at = "", 0
                    yield None
            if first not in '{["' and self._text[self._at] in _NUMBER_OR_WORD_ENDS:
                break
            character = self._text[self._at]
            self._at += 1
        yield "".join(pieces)


def parameters_grammar(tool: ToolSpec) -> str:
    """A ``%json`` item for the object of a tool's arguments."""
    schema = {"type": "object", **tool.parameters} if tool.parameters else _NO_PARAMETERS
    return lark_json(schema, lenient=not tool.strict)


def object_grammar(tool: ToolSpec, word: str) -> str:
    """The whole object of a call; ``word`` names the member that holds the arguments."""
    head = lark_string(f'{{"name": {json.dumps(tool.name)}, "{word}": ')
    return f'{head} {parameters_grammar(tool)} "}}"'


_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def _hermes_grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    body = object_grammar(tool, "arguments")
    return CallGrammar(rule, f'{rule}: "{_OPEN}" "\\n"? {body} "\\n"? "{_CLOSE}"')


def _llama3_grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    return CallGrammar(rule, f"{rule}: {object_grammar(tool, 'parameters')}")


def write_object(name: str, word: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, word: arguments}, ensure_ascii=False)


HERMES = ToolFormat(
    name="hermes",
    start_markers=(_OPEN,),
    tags=(_OPEN, _CLOSE),
    parser=lambda tools: JsonCallParser(tools, (_CLOSE,)),
    grammar=_hermes_grammar,
    write_call=lambda name, arguments: f"{_OPEN}\n{write_object(name, 'arguments', arguments)}\n{_CLOSE}",
    separator="\n",
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    start_markers=("<|python_tag|>",),
    tags=("<|python_tag|>",),
    parser=lambda tools: JsonCallParser(tools, (";",)),
    grammar=_llama3_grammar,
    write_call=lambda name, arguments: write_object(name, "parameters", arguments),
    bare_start="{",
)
