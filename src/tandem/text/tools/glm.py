"""GLM's XML calls: ``<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>…</tool_call>``.

Values carry no type, so the declared schema decides (``argument_json``). Models write this imperfectly; read
all the same are missing or doubled tags, keys without a value, calls without arguments, and tags quoted
inside a value. A tag inside a value counts as structure only where what follows fits:

    </arg_value>   before <arg_key>, another closing tag, a call of a declared tool, a declared key, the end
    </tool_call>   before a call of a declared tool or the end (the value's own closing tag is missing)
    <arg_key>K</arg_key>   for a declared K not yet given  (as above)
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from tandem.text.scan import find_first, held_suffix, may_begin
from tandem.text.tools.base import CallGrammar, CallParser, CallStatus, ToolFormat
from tandem.text.tools.lark import lark_json, lark_string
from tandem.text.tools.schema import ToolSpec
from tandem.text.tools.values import ArgumentValue, spelled_values

_CALL = "<tool_call>"
_END_CALL = "</tool_call>"
_KEY = "<arg_key>"
_END_KEY = "</arg_key>"
_VALUE = "<arg_value>"
_END_VALUE = "</arg_value>"
_TAGS = (_CALL, _END_CALL, _KEY, _END_KEY, _VALUE, _END_VALUE)
_NAME_SO_FAR = re.compile(r"\s*[A-Za-z0-9_.:/-]*(\s+[A-Za-z0-9_.:/-]*)?\s*")


class GlmCallParser(CallParser):
    """See the module's description."""

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        super().__init__(tools)
        self._given: set[str] = set()

    def _read(self) -> Iterator[None]:
        first_key = yield from self._read_name()
        if self.name is None:
            self.status = CallStatus.REJECTED
            return
        if first_key is not None:
            yield from self._read_argument(first_key)
        while (key := (yield from self._next_key())) is not None:
            yield from self._read_argument(key)
        self._output.append("}" if self._given else "{}")
        self.status = CallStatus.DONE

    def _read_name(self) -> Generator[None, None, str | None]:
        """Sets ``name`` if it is declared. Returns the first key where ``<arg_key>`` before it is missing."""
        while True:
            found = find_first(self._text, _TAGS)
            end = len(self._text) if found is None else found[0]
            if found is None and not self._ended:
                end -= held_suffix(self._text, _TAGS)
            if not _NAME_SO_FAR.fullmatch(self._text, 0, end):
                return None
            if found is not None or self._ended:
                break
            yield
        words = self._text[:end].split()
        key = words[1] if len(words) == 2 and found is not None and found[1] == _END_KEY else None
        if len(words) != (1 if key is None else 2) or words[0] not in self._tools:
            return None
        self.name = words[0]
        self._text = self._text[end:] if key is None else self._text[end + len(_END_KEY) :]
        return key

    def _next_key(self) -> Generator[None, None, str | None]:
        """The next argument's key, or None at the end of the call."""
        while True:
            self._text = self._text.lstrip()
            if self._text.startswith((_END_KEY, _END_VALUE, _VALUE)):
                self._text = self._text[self._text.index(">") + 1 :]
            elif self._text.startswith(_END_CALL):
                self._text = self._text[len(_END_CALL) :]
                return None
            elif self._text.startswith(_CALL):
                return None
            elif self._text.startswith(_KEY):
                self._text = self._text[len(_KEY) :]
                key = yield from self._read_key()
                if key:
                    return key
            elif self._ended and not find_first(self._text, _TAGS):
                self._text = ""
                return None
            elif may_begin(self._text, _TAGS):
                yield
            else:
                found = find_first(self._text, _TAGS)
                if found is None:
                    yield
                    continue
                stray = self._text[: found[0]].strip()
                self._text = self._text[found[0] :]
                if found[1] == _END_KEY and stray:
                    self._text = self._text[len(_END_KEY) :]
                    return stray

    def _read_key(self) -> Generator[None, None, str]:
        """The text up to ``</arg_key>`` (or a tag that shows it is missing); "" for a key without a value."""
        while (found := find_first(self._text, (_END_KEY, _VALUE, _END_CALL, _KEY))) is None:
            if self._ended:
                self._text = ""
                return ""
            yield
        key = self._text[: found[0]].strip()
        self._text = self._text[found[0] + (len(_END_KEY) if found[1] == _END_KEY else 0) :]
        while True:
            self._text = self._text.lstrip()
            if self._text.startswith((_KEY, _END_CALL)) or (self._ended and not self._text):
                return ""
            if not self._ended and may_begin(self._text, _TAGS):
                yield
                continue
            return key

    def _read_argument(self, key: str) -> Generator[None, None, None]:
        assert self.name is not None
        repeated = key in self._given
        if not repeated:
            self._output.append((", " if self._given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            self._given.add(key)
        value = ArgumentValue(self._tools[self.name].value_types(key), [] if repeated else self._output)
        while self._text.startswith(_VALUE) or may_begin(self._text, (_VALUE,)):
            if self._text.startswith(_VALUE):
                self._text = self._text[len(_VALUE) :]
            elif self._ended:
                break
            else:
                yield
        yield from self._read_value(value)
        value.close()

    def _read_value(self, value: ArgumentValue) -> Generator[None, None, None]:
        tags = (_END_VALUE, _END_CALL, _KEY)
        start = 0
        while True:
            found = find_first(self._text, tags, start)
            at = len(self._text) - held_suffix(self._text, tags) if found is None else found[0]
            verdict = None if found is None else self._ends_value(*found)
            if verdict is False and found is not None:
                start = at + len(found[1])
                continue
            if found is None and self._ended:
                at = len(self._text)
            if at:
                value.push(self._text[:at])
                self._text, start = self._text[at:], 0
            if verdict or (found is None and self._ended):
                if found is not None and found[1] == _END_VALUE:
                    self._text = self._text[len(_END_VALUE) :]
                return
            yield

    def _ends_value(self, at: int, tag: str) -> bool | None:
        """Whether a tag inside a value is structure; None while that cannot be told."""
        assert self.name is not None
        missing = [key for key in self._tools[self.name].properties if key not in self._given]
        if tag == _KEY:
            behind = self._text[at + len(tag) :]
            followers = [f"{key}{_END_KEY}" for key in missing]
        else:
            behind = self._text[at + len(tag) :].lstrip()
            followers = [f"{_CALL}{name}" for name in self._tools]
            if tag == _END_VALUE:
                followers += [_KEY, _END_CALL, _END_VALUE, *(f"{key}{_END_KEY}" for key in missing)]
        if behind.startswith(tuple(followers)):
            return True
        if self._ended:
            return not behind
        return None if may_begin(behind, followers) else False


def _grammar(tool: ToolSpec, rule: str) -> CallGrammar:
    """Arguments in declared order, optional ones may be left out."""
    gap = f"{rule}_gap"
    required = tool.parameters.get("required")
    lines = [f'{gap}: "\\n"?']
    parts = [lark_string(f"{_CALL}{tool.name}")]
    for number, (key, schema) in enumerate(tool.properties.items()):
        value = f"{rule}_{number}"
        lines.append(_value_rule(value, schema, tool, tool.value_types(key)))
        optional = "" if isinstance(required, list) and key in required else "?"
        head = lark_string(f"{_KEY}{key}{_END_KEY}")
        parts.append(f"({gap} {head} {gap} {lark_string(_VALUE)} {value}){optional}")
    parts.append(f"{gap} {lark_string(_END_CALL)}")
    return CallGrammar(rule, "\n".join([f"{rule}: {' '.join(parts)}", *lines]))


def _value_rule(rule: str, schema: object, tool: ToolSpec, types: frozenset[str]) -> str:
    """One value with its closing tag. Free strings are written bare, so nothing but their end is enforced."""
    values = spelled_values(schema)
    if values is not None:
        body = " | ".join(lark_string(value) for value in values)
        return f"{rule}: ({body}) {lark_string(_END_VALUE)}"
    if types <= {"string"}:
        return f"{rule}[lazy]: /(?s:.)*<\\/arg_value>/"
    json_rule = lark_json(schema, tool.parameters, lenient=not tool.strict)
    return f"{rule}: {json_rule} {lark_string(_END_VALUE)}"


def _write_call(name: str, arguments: Mapping[str, Any]) -> str:
    pairs = [
        f"{_KEY}{key}{_END_KEY}{_VALUE}"
        f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{_END_VALUE}"
        for key, value in arguments.items()
    ]
    return f"{_CALL}{name}{''.join(pairs)}{_END_CALL}"


GLM = ToolFormat(
    name="glm",
    start_markers=(_CALL,),
    tags=_TAGS,
    parser=GlmCallParser,
    grammar=_grammar,
    write_call=_write_call,
    separator="\n",
)
