"""Tools for models whose chat template knows none: declared in the system message, results as user turns.

The answer is then read (and, where a call is forced, constrained) like that of any other model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tandem.text.tools.base import ToolFormat


def write_tools(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """Normalised messages without tool calls and tool roles, with ``tools`` declared in the first message."""
    written = [_plain(message, tool_format) for message in messages]
    if not tools:
        return written
    has_system = written[0]["role"] == "system"
    parts = [written[0]["content"], _declaration(tools, tool_format)]
    system = {"role": "system", "content": "\n\n".join(filter(None, parts if has_system else parts[1:]))}
    return [system, *written[1:]] if has_system else [system, *written]


def _declaration(tools: list[dict[str, Any]], tool_format: ToolFormat) -> str:
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    example = tool_format.write_call("NAME", {"PARAMETER": "VALUE"})
    return (
        f"You can call these functions (their parameters are described by JSON Schema):\n{functions}\n"
        f"To call one, write its name and arguments exactly like this, and nothing after it:\n{example}\n"
        "The result comes back inside <tool_response> tags. If no function helps, answer in plain words."
    )


def _plain(message: Mapping[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [tool_format.write_call(function["name"], function["arguments"]) for function in functions]
    plain["content"] = "\n".join(filter(None, [plain["content"], *calls]))
    return plain
