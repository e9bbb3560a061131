"""YAML as data with the line of every field, read by strict rules.

A recipe is read by people, other tools and other YAML libraries, so what they would read differently is an
error here: yes/no/on/off words, unquoted hashes that look like numbers, dates that turn into objects, octal
and base-60 numbers, duplicate keys, anchors and tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from tandem.core.errors import UserError

MAX_FILE_BYTES = 1 << 20
_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LIKE_A_NUMBER = re.compile(
    r"[-+]?[0-9][0-9_]*(:[0-9]+)+|[-+]?0[0-9_]+|0[xob][0-9a-fA-F_]+|[-+]?\.(inf|nan)", re.I
)

_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
}
"""What plain YAML resolves to by itself."""

Path = tuple[str | int, ...]


class RecipeFileError(UserError):
    """A recipe, confirmation or models file is wrong at one place."""

    def __init__(self, file: str, line: int, where: str, problem: str, remedy: str | None = None) -> None:
        self.file = file
        self.line = line
        self.where = where
        self.problem = problem
        place = f"{file}:{line}: " + (f"{where}: " if where else "")
        super().__init__(place + problem, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Located:
    """Plain data (dict, list, str, int, float, bool, None) and where each part stands."""

    file: str
    data: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of the deepest part of ``path`` that exists in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: Path) -> str:
    """``("profiles", 0, "kv")`` is ``profiles[0].kv``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def read_yaml(text: str, file: str) -> list[Located]:
    """All documents of a file. Raises RecipeFileError naming file, line and field."""
    if len(text) > MAX_FILE_BYTES:
        raise RecipeFileError(file, 1, "", f"larger than {MAX_FILE_BYTES} characters")
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise RecipeFileError(file, line, "", f"not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise RecipeFileError(file, 1, "", "not YAML that can be read") from error
    return [_located(node, file) for node in nodes]


def _located(root: yaml.Node, file: str) -> Located:
    located = Located(file, None)
    seen: set[int] = set()

    def convert(node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        located.lines.setdefault(path, line)
        if id(node) in seen:
            raise RecipeFileError(file, line, dotted(path), "anchors and aliases are not allowed")
        seen.add(id(node))
        if node.tag not in _TAGS:
            raise RecipeFileError(file, line, dotted(path), "tags are not allowed")
        if isinstance(node, yaml.MappingNode):
            return _mapping(node, path, convert)
        if isinstance(node, yaml.SequenceNode):
            return [convert(item, (*path, index)) for index, item in enumerate(node.value)]
        return _scalar(node, file, path)

    def _mapping(node: yaml.MappingNode, path: Path, convert_value: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeFileError(file, line, dotted(path), "keys must be plain words")
            key = key_node.value
            if key_node.style is None and key.lower() in _AMBIGUOUS:
                raise RecipeFileError(
                    file, line, dotted((*path, key)), f"the key {key!r} reads as true or false in YAML"
                )
            if key in result:
                raise RecipeFileError(file, line, dotted((*path, key)), "the key is given twice")
            located.lines[(*path, key)] = line
            result[key] = convert_value(value_node, (*path, key))
        return result

    try:
        data = convert(root, ())
    except RecursionError as error:
        raise RecipeFileError(file, 1, "", "nested too deeply") from error
    return Located(file, data, located.lines)


def _scalar(node: yaml.Node, file: str, path: Path) -> Any:
    text = str(node.value)
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return text
    lowered = text.lower()
    if lowered in {"", "null", "~"}:
        return None
    if lowered in {"true", "false"}:
        return lowered == "true"
    if lowered in _AMBIGUOUS:
        raise RecipeFileError(
            file, line, dotted(path), f"{text!r} reads as true or false in YAML", remedy="put it in quotes"
        )
    if _INT.fullmatch(text):
        return int(text) if len(text) < 20 else text
    if _FLOAT.fullmatch(text):
        return float(text)
    if _LIKE_A_NUMBER.fullmatch(text):
        raise RecipeFileError(
            file, line, dotted(path), f"{text!r} reads as another number in YAML", remedy="put it in quotes"
        )
    return text


def walk(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every scalar of plain data with its path."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from walk(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from walk(value, (*path, index))
    else:
        yield path, data
