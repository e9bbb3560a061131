"""Pieces of Lark grammars in the dialect that llguidance reads."""

from __future__ import annotations

import json
from typing import Any

from tandem.text.tools.base import ToolFormat
from tandem.text.tools.schema import ToolSpec

MAX_GAP_CHARACTERS = 24
"""Whitespace between two JSON tokens: enough for deep indentation, too little to run on in."""
MAX_CALLS = 16

JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": f"[\\x20\\x0A\\x0D\\x09]{{0,{MAX_GAP_CHARACTERS}}}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}


def lark_string(text: str) -> str:
    """A terminal that is exactly ``text``."""
    return json.dumps(text, ensure_ascii=False)


def lark_json(schema: Any, root: Any = None, *, lenient: bool = False) -> str:
    """A ``%json`` item for a schema; ``root`` holds the definitions it may refer to."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        schema = {"enum": []}
    definitions = {
        key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root
    }
    options = {**JSON_OPTIONS, "lenient": lenient}
    return f"%json {json.dumps({**definitions, **schema, 'x-guidance': options})}"


def calls_grammar(
    tool_format: ToolFormat,
    tools: tuple[ToolSpec, ...],
    *,
    single: bool,
    lead: bool,
    otherwise: str | None = None,
) -> str:
    """At least one call of the given tools, exactly one if ``single``; or ``otherwise``, another answer in
    whole. ``lead`` allows blank lines first."""
    grammars = [tool_format.grammar(tool, f"call_{number}") for number, tool in enumerate(tools)]
    calls = "call"
    if not single:
        separator = lark_string(tool_format.separator) if tool_format.separator else ""
        maybe = "?" if separator and not tool_format.opening else ""
        calls = f"call ({separator}{maybe} call){{0,{MAX_CALLS - 1}}}"
    if tool_format.opening:
        calls = f"{lark_string(tool_format.opening)} {calls} {lark_string(tool_format.closing)}"
    return "\n".join(
        [
            f"start: {LEAD if lead else ''} {'calls' if otherwise is None else '(calls | otherwise)'}",
            f"calls: {calls}",
            *(() if otherwise is None else (f"otherwise: {otherwise}",)),
            f"call: {' | '.join(grammar.rule for grammar in grammars)}",
            *(grammar.text for grammar in grammars),
        ]
    )


LEAD = "/\\n{0,2}/"
"""Blank lines between a closed reasoning block and what follows it."""

__all__ = ["JSON_OPTIONS", "LEAD", "MAX_CALLS", "calls_grammar", "lark_json", "lark_string"]
