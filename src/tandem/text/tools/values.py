"""Arguments written as bare text between tags, for the formats that write them so."""

from __future__ import annotations

import json

from tandem.text.tools.schema import argument_json


class ArgumentValue:
    """One argument's value, turned into JSON as it arrives: strings at once, other types when whole."""

    def __init__(self, types: frozenset[str], output: list[str]) -> None:
        self._types = types
        self._output = output
        self._buffer = ""
        self._streaming = types <= {"string"}
        if self._streaming:
            output.append('"')

    def push(self, text: str) -> None:
        if self._streaming:
            self._output.append(json.dumps(text, ensure_ascii=False)[1:-1])
            return
        self._buffer += text
        if self._types == {"string", "null"} and not "null".startswith(self._buffer.strip()):
            self._streaming = True
            self._output.append(json.dumps(self._buffer, ensure_ascii=False)[:-1])

    def close(self) -> None:
        self._output.append('"' if self._streaming else argument_json(self._buffer, self._types))


def spelled_values(schema: object) -> list[str] | None:
    """The allowed values of an enum or const as this format writes them: strings bare, the rest as JSON."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not values:
        return None
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
