"""Declared tools: checked once, then asked for names and parameter types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.errors import RequestError

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")
_MAX_REFERENCES = 8
_ALL_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One declared function. ``parameters`` is its JSON Schema, ``{}`` when it takes nothing."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False
    """Every keyword of the schema is enforced where a call is forced, or the request is refused."""

    @property
    def properties(self) -> Mapping[str, Any]:
        found = self.parameters.get("properties")
        return found if isinstance(found, dict) else {}

    def value_types(self, key: str) -> frozenset[str]:
        """JSON types the parameter may have; empty when it is not declared or its type is not said."""
        schema = self.properties.get(key)
        return frozenset() if schema is None else _types(schema, self.parameters, _MAX_REFERENCES)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, dict) or depth == 0:
        return frozenset()
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & _ALL_TYPES
    if isinstance(declared, list):
        return frozenset(item for item in declared if isinstance(item, str)) & _ALL_TYPES
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _types(_resolve(reference, root), root, depth - 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(_types(part, root, depth - 1) for part in schema[word]))
    if isinstance(schema.get("allOf"), list):
        parts = [_types(part, root, depth - 1) for part in schema["allOf"]]
        known = [part for part in parts if part]
        return frozenset.intersection(*known) if known else frozenset()
    return frozenset()


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, dict) and key else node
    return node if reference.startswith("#") else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def argument_json(text: str, types: frozenset[str]) -> str:
    """JSON for an argument written as bare text, by its declared types.

    The text is taken as JSON only if it is one whole JSON value of a declared type other than string;
    everything else is a string, byte for byte. No declared type means string.
    """
    others = types - {"string"}
    if others:
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            value = _NOTHING
        kind = None if value is _NOTHING else _type_of(value)
        whole = isinstance(value, float) and value.is_integer()
        if kind in others or (kind == "integer" and "number" in others) or (whole and "integer" in others):
            return text.strip()
    return json.dumps(text, ensure_ascii=False)


_NOTHING = object()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_tools(tools: Iterable[Any] | None) -> tuple[ToolSpec, ...]:
    """Check tools in OpenAI's shape. Raises RequestError (400) naming the field at fault."""
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple):
        raise RequestError("tools must be a list", param="tools", found=type(tools).__name__)
    specs: dict[str, ToolSpec] = {}
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        if not isinstance(tool, dict) or tool.get("type", "function") != "function":
            raise RequestError(
                f"{where} must be an object of type function",
                param=where,
                found=repr(tool.get("type")) if isinstance(tool, dict) else type(tool).__name__,
            )
        function = tool.get("function")
        if not isinstance(function, dict):
            raise RequestError(f"{where}.function must be an object", param=f"{where}.function")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(
                f"{where}.function.name must be letters, digits and _ . : / - only",
                param=f"{where}.function.name",
                found=repr(name),
            )
        if parameters is not None and not isinstance(parameters, dict):
            raise RequestError(
                f"{where}.function.parameters must be a JSON Schema object",
                param=f"{where}.function.parameters",
                found=type(parameters).__name__,
            )
        specs.setdefault(name, ToolSpec(name, parameters or {}, function.get("strict") is True))
    return tuple(specs.values())
