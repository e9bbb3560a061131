"""Qwen3-Coder's XML calls; line breaks next to a value's tags belong to the tags::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values carry no type, so the declared schema decides (``argument_json``). Read all the same are a missing
``<tool_call>``, missing closing tags, and tags quoted inside a value: a tag there counts as structure only
where what follows fits.

    </parameter>     before <parameter=, another closing tag or the end
    </function>      before </tool_call>, another call or the end (the value's own closing tag is missing)
    <parameter=K>    at the start of a line, for a declared K not yet given  (as above)
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from tandem.text.scan import held_suffix, may_begin
from tandem.text.tools.base import CallGrammar, CallParser, CallStatus, ToolFormat
from tandem.text.tools.lark import lark_json, lark_string
from tandem.text.tools.schema import ToolSpec
from tandem.text.tools.values import ArgumentValue, spelled_values

_CALL = "<tool_call>"
_END_CALL = "</tool_call>"
_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"
_CLOSERS = (_END_PARAMETER, _END_FUNCTION, _END_CALL)
_VALUE_ENDS = (
    *(f"\n{tag}" for tag in (_END_PARAMETER, _END_FUNCTION, _END_CALL, _PARAMETER)),
    *(_END_PARAMETER, _END_FUNCTION, _END_CALL),
)
_NAME_SO_FAR = re.compile(r"\s*[A-Za-z0-9_.:/-]{0,256}\s*")


class QwenCallParser(CallParser):
    """See the module's description. Begins behind ``<tool_call>`` or behind ``<function=``."""

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        super().__init__(tools)
        self._given: set[str] = set()

    def _read(self) -> Iterator[None]:
        name = yield from self._read_name()
        if name not in self._tools:
            self.status = CallStatus.REJECTED
            return
        self.name = name
        while (key := (yield from self._next_key())) is not None:
            yield from self._read_argument(key)
        self._output.append("}" if self._given else "{}")
        self.status = CallStatus.DONE

    def _read_name(self) -> Generator[None, None, str | None]:
        yield from self._skip_space((_FUNCTION,))
        self._text = self._text.removeprefix(_FUNCTION)
        while (end := self._text.find(">")) < 0:
            if self._ended or not _NAME_SO_FAR.fullmatch(self._text):
                return None
            yield
        name, self._text = self._text[:end].strip(), self._text[end + 1 :]
        return name

    def _next_key(self) -> Generator[None, None, str | None]:
        """The next argument's key, or None at the end of the call, whose closing tags are taken along."""
        tags = (_PARAMETER, *_CLOSERS, _CALL, _FUNCTION)
        closed = False
        while True:
            yield from self._skip_space(tags)
            if self._text.startswith(_END_CALL):
                self._text = self._text[len(_END_CALL) :]
                return None
            if self._text.startswith((_END_PARAMETER, _END_FUNCTION)):
                closed = closed or self._text.startswith(_END_FUNCTION)
                self._text = self._text[self._text.index(">") + 1 :]
            elif self._text.startswith(_PARAMETER) and not closed:
                while (end := self._text.find(">")) < 0:
                    if self._ended:
                        self._text = ""
                        return None
                    yield
                key, self._text = self._text[len(_PARAMETER) : end].strip(), self._text[end + 1 :]
                return key
            elif closed or self._ended or self._text.startswith((_CALL, _FUNCTION)):
                return None
            elif (at := self._text.find("<", 1)) >= 0:
                self._text = self._text[at:]
            else:
                self._text = ""

    def _skip_space(self, tags: tuple[str, ...]) -> Generator[None, None, None]:
        """Leave the text at its first visible character, enough of it to tell the tags apart."""
        while True:
            self._text = self._text.lstrip()
            if self._ended or not may_begin(self._text, tags):
                return
            yield

    def _read_argument(self, key: str) -> Generator[None, None, None]:
        assert self.name is not None
        repeated = key in self._given
        if not repeated:
            self._output.append((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            self._given.add(key)
        while not self._text and not self._ended:
            yield
        self._text = self._text.removeprefix("\n")
        value = ArgumentValue(self._tools[self.name].value_types(key), [] if repeated else self._output)
        yield from self._read_value(value)
        value.close()

    def _read_value(self, value: ArgumentValue) -> Generator[None, None, None]:
        start = 0
        while True:
            found = _earliest(self._text, start)
            at = len(self._text) - held_suffix(self._text, _VALUE_ENDS) if found is None else found[0]
            verdict = None if found is None else self._ends_value(*found)
            if verdict is False and found is not None:
                start = at + 1
                continue
            if found is None and self._ended:
                at = len(self._text)
            if at:
                value.push(self._text[:at])
                self._text, start = self._text[at:], max(start - at, 0)
            if verdict or (found is None and self._ended):
                return
            yield

    def _ends_value(self, at: int, tag: str) -> bool | None:
        """Whether a tag inside a value is structure; None while that cannot be told."""
        assert self.name is not None
        behind = self._text[at + len(tag) :]
        if tag.endswith(_PARAMETER):
            missing = [key for key in self._tools[self.name].properties if key not in self._given]
            followers = [f"{key}>" for key in missing]
        else:
            behind = behind.lstrip()
            followers = [_CALL, _END_CALL]
            if tag.endswith(_END_CALL):
                followers = [_CALL]
            elif tag.endswith(_END_PARAMETER):
                followers += [_PARAMETER, _END_FUNCTION]
        if behind.startswith(tuple(followers)):
            return True
        if self._ended:
            return not behind
        return None if may_begin(behind, followers) else False


def _earliest(text: str, start: int) -> tuple[int, str] | None:
    """Place and text of the first possible end of a value, with the line break before it if there is one."""
    places = [(at, -len(tag), tag) for tag in _VALUE_ENDS if (at := text.find(tag, start)) >= 0]
    return None if not places else (min(places)[0], min(places)[2])


def _grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    """Arguments in declared order, optional ones may be left out."""
    required = tool.parameters.get("required")
    lines = []
    parts = [lark_string(f"{_CALL}\n{_FUNCTION}{tool.name}>\n")]
    for number, (key, schema) in enumerate(tool.properties.items()):
        value = f"{rule}_{number}"
        lines.append(_value_rule(value, schema, tool, tool.value_types(key)))
        optional = "" if isinstance(required, list) and key in required else "?"
        head = lark_string(f"{_PARAMETER}{key}>\n")
        parts.append(f'({head} {value} "\\n"){optional}')
    parts.append(lark_string(f"{_END_FUNCTION}\n{_END_CALL}"))
    return CallGrammar(rule, "\n".join([f"{rule}: {' '.join(parts)}", *lines]))


def _value_rule(rule: str, schema: object, tool: ToolSpec, types: frozenset[str]) -> str:
    """One value with its closing tag. Free strings are written bare, so nothing but their end is enforced."""
    values = spelled_values(schema)
    end = lark_string(f"\n{_END_PARAMETER}")
    if values is not None:
        return f"{rule}: ({' | '.join(lark_string(value) for value in values)}) {end}"
    if types <= {"string"}:
        return f"{rule}[lazy]: /(?s:.)*\\n<\\/parameter>/"
    return f"{rule}: {lark_json(schema, tool.parameters, lenient=not tool.strict)} {end}"


def _write_call(name: str, arguments: Mapping[str, Any]) -> str:
    lines = [_CALL, f"{_FUNCTION}{name}>"]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"{_PARAMETER}{key}>", text, _END_PARAMETER]
    return "\n".join([*lines, _END_FUNCTION, _END_CALL])


QWEN_XML = ToolFormat(
    name="qwen_xml",
    start_markers=(_CALL, _FUNCTION),
    tags=(_CALL, _END_CALL),
    parser=QwenCallParser,
    grammar=_grammar,
    write_call=_write_call,
    separator="\n",
)
