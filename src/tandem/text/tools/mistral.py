"""Mistral's calls behind the control token ``[TOOL_CALLS]``, in both of its forms::

    [TOOL_CALLS][{"name": NAME, "arguments": {…}}, …]             older models
    [TOOL_CALLS]NAME[ARGS]{…}[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}  newer ones

Either parser reads both, since fine-tuned models mix them; a format's grammar writes its own.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from tandem.text.tools.base import CallGrammar, ToolFormat
from tandem.text.tools.json_calls import (
    JsonCallParser,
    NotACallError,
    object_grammar,
    parameters_grammar,
    write_object,
)
from tandem.text.tools.lark import lark_string
from tandem.text.tools.schema import ToolSpec

_CALLS = "[TOOL_CALLS]"
_ARGS = "[ARGS]"
_CALL_ID = "[CALL_ID]"
_LONGEST_HEAD = 400
"""Characters of a name and an id before the arguments: more is no call."""


class MistralCallParser(JsonCallParser):
    """See the module's description."""

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        super().__init__(tools, ())
        self._in_list = False

    def _read_object(self) -> Generator[None, None, None]:
        mark = yield from self._next_mark()
        if mark in "[{":
            self._in_list = True
            if mark == "[" and (yield from self._next_mark()) != "{":
                raise NotACallError
            yield from self._read_members()
            return
        head = mark
        while not head.endswith((_ARGS, "{")):
            head += yield from self._next_character()
            if len(head) > _LONGEST_HEAD:
                raise NotACallError
        name = head.removesuffix("{").removesuffix(_ARGS).partition(_CALL_ID)[0].strip()
        if name not in self._tools:
            raise NotACallError
        self.name = name
        if not head.endswith("{") and (yield from self._next_mark()) != "{":
            self._output.append("{}")
            self._at -= 1
            return
        yield from self._read_arguments("{")
        self._hand_out(0)

    def _read_closer(self) -> Generator[None, None, None]:
        """Behind a call of a list: another one, whose marker is put before it, or the end of the list."""
        while self._in_list:
            behind = self._text[self._at :].lstrip(" \t\r\n}")
            following = behind[1:].lstrip() if behind.startswith(",") else ""
            if following.startswith("{"):
                self._text = _CALLS + following
                return
            if behind.startswith("]") or self._ended or behind.rstrip() not in {"", ","}:
                self._text = behind.removeprefix("]")
                return
            yield
        self._text = self._text[self._at :]


def _list_grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    return CallGrammar(rule, f"{rule}: {object_grammar(tool, 'arguments')}")


def _args_grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    head = lark_string(f"{_CALLS}{tool.name}{_ARGS}")
    return CallGrammar(rule, f"{rule}: {head} {parameters_grammar(tool)}")


def _write_args(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{_CALLS}{name}{_ARGS}{json.dumps(arguments, ensure_ascii=False)}"


MISTRAL = ToolFormat(
    name="mistral",
    start_markers=(_CALLS,),
    tags=(_CALLS,),
    parser=MistralCallParser,
    grammar=_list_grammar,
    write_call=lambda name, arguments: f"{_CALLS}[{write_object(name, 'arguments', arguments)}]",
    separator=", ",
    opening=f"{_CALLS}[",
    closing="]",
    short_ids=True,
)
MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    start_markers=(_CALLS,),
    tags=(_CALLS, _ARGS, _CALL_ID),
    parser=MistralCallParser,
    grammar=_args_grammar,
    write_call=_write_args,
    short_ids=True,
)
