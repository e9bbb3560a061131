"""Messages as clients send them, brought into the one shape that chat templates expect.

After ``normalize_messages`` a message is a dict with ``role`` (system, user, assistant or tool), ``content``
(always a string) and, where given: ``tool_calls`` (never empty; arguments as an object),
``reasoning_content``, ``tool_call_id``, ``name``. Everything else a client adds is dropped.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tandem.core.errors import RequestError

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_WORDS = ("image", "audio", "video", "file")


def normalize_messages(messages: Any) -> list[dict[str, Any]]:
    """Check and convert. Raises RequestError (400) whose ``param`` names message and field."""
    if not isinstance(messages, list):
        raise RequestError("messages must be a list", param="messages", found=type(messages).__name__)
    if not messages:
        raise RequestError("messages must not be empty", param="messages", found="an empty list")
    return _order_tool_results([_message(item, f"messages[{i}]") for i, item in enumerate(messages)])


def _refuse(where: str, problem: str, found: str | None = None, remedy: str | None = None) -> NoReturn:
    raise RequestError(f"{where} {problem}", param=where, found=found, remedy=remedy)


def _message(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        _refuse(where, "must be an object", type(item).__name__)
    given = item.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        _refuse(f"{where}.role", "is not a known role", repr(given), ", ".join(_ROLES))
    message: dict[str, Any] = {"role": role, "content": _content(item.get("content"), f"{where}.content")}
    reasoning = _reasoning(item, where) if role == "assistant" else None
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = _tool_calls(item, where) if role == "assistant" else []
    if calls:
        message["tool_calls"] = calls
    for key in ("name", "tool_call_id"):
        value = item.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            _refuse(f"{where}.{key}", "must be a string", type(value).__name__)
        message[key] = value
    return message


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, "must be a string or a list of parts", type(content).__name__)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        _refuse(where, "must be an object", type(part).__name__)
    kind = part.get("type")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        if isinstance(kind, str) and any(word in kind for word in _MEDIA_WORDS):
            _refuse(
                where, "cannot be used: this model reads text only", f"a part of type {kind}", "send text"
            )
        _refuse(f"{where}.type", "is not a known part type", repr(kind), "text")
    text = part.get(field)
    if not isinstance(text, str):
        _refuse(f"{where}.{field}", "must be a string", type(text).__name__)
    return text


def _reasoning(item: dict[str, Any], where: str) -> str | None:
    for key in ("reasoning_content", "reasoning"):
        value = item.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            _refuse(f"{where}.{key}", "must be a string", type(value).__name__)
        return value
    return None


def _tool_calls(item: dict[str, Any], where: str) -> list[dict[str, Any]]:
    calls = item.get("tool_calls")
    if not calls and isinstance(item.get("function_call"), dict):
        calls = [{"function": item["function_call"]}]
    if calls is None:
        return []
    if not isinstance(calls, list):
        _refuse(f"{where}.tool_calls", "must be a list", type(calls).__name__)
    return [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        _refuse(f"{where}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}.function.name", "must be a string", repr(name))
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    result: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(call.get("id"), str):
        result["id"] = call["id"]
    return result


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            _refuse(where, "is not valid JSON", str(error))
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        _refuse(where, "must be a JSON object", type(arguments).__name__)
    return arguments


def _order_tool_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put results that answer one assistant message into the order of its calls.

    Templates print results without their ids, so the order alone says which is whose. Results without an id
    (or with one that no call has) are left where they are.
    """
    ordered: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        ordered.append(message)
        position += 1
        ids = [call.get("id") for call in message.get("tool_calls", ())]
        end = position
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = messages[position:end]
        if ids and all(result.get("tool_call_id") in ids for result in results):
            ordered += sorted(results, key=lambda result: ids.index(result["tool_call_id"]))
            position = end
    return ordered


def alternate_roles(messages: list[dict[str, Any]], *, fold_system: bool) -> list[dict[str, Any]]:
    """The same conversation for a template that insists on user and assistant taking turns.

    Neighbours of one role are joined by a blank line, a leading assistant turn gets an empty user turn before
    it; with ``fold_system`` system text moves into the next user turn. No text is lost.
    """
    result: list[dict[str, Any]] = []
    folded = ""
    for message in messages:
        if fold_system and message["role"] == "system":
            folded = f"{folded}{message['content']}\n\n"
            continue
        if folded and message["role"] == "user":
            message, folded = {**message, "content": folded + message["content"]}, ""
        previous = result[-1] if result else None
        if previous is not None and _can_join(previous, message):
            texts = [text for text in (previous["content"], message["content"]) if text]
            result[-1] = {**previous, "content": "\n\n".join(texts)}
        else:
            if message["role"] == "assistant" and (previous is None or previous["role"] == "system"):
                result.append({"role": "user", "content": folded.rstrip()})
                folded = ""
            result.append(message)
    if folded:
        result.append({"role": "user", "content": folded.rstrip()})
    return result


def _can_join(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return (
        first["role"] == second["role"]
        and first["role"] != "tool"
        and not ("tool_calls" in first or "tool_calls" in second)
        and "reasoning_content" not in second
    )
