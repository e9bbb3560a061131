"""The registry of output formats, and which of them a chat template speaks."""

from __future__ import annotations

from tandem.core.errors import ModelUnsupportedError
from tandem.text.reasoning import THINK, ReasoningFormat
from tandem.text.tools.base import ToolFormat
from tandem.text.tools.glm import GLM
from tandem.text.tools.json_calls import HERMES, LLAMA3_JSON
from tandem.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from tandem.text.tools.qwen_xml import QWEN_XML

_REASONING = {THINK.name: THINK}
_TOOLS = {
    tool_format.name: tool_format
    for tool_format in (GLM, HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS, QWEN_XML)
}
_OFF = "none"


def reasoning_format(name: str | None, template: str) -> ReasoningFormat | None:
    """The format of that name, or (None) the one the template speaks. Raises ModelUnsupportedError."""
    if name is None:
        return THINK if THINK.open_tag in template or THINK.close_tag in template else None
    if name == _OFF:
        return None
    if name not in _REASONING:
        raise _unknown("reasoning format", name, list(_REASONING))
    return _REASONING[name]


def tool_format(name: str | None, template: str) -> ToolFormat | None:
    """The format of that name, or (None) the one the template speaks. Raises ModelUnsupportedError.

    Where a chat template does not mention tools at all, calls are written as Hermes does, the most common.
    """
    if name is None:
        if "<arg_key>" in template:
            return GLM
        if "<tool_call>" in template:
            return QWEN_XML if "<function=" in template else HERMES
        if "[TOOL_CALLS]" in template:
            return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
        if '"parameters": ' in template and "<|eot_id|>" in template:
            return LLAMA3_JSON
        return HERMES if template and "tools" not in template else None
    if name == _OFF:
        return None
    if name not in _TOOLS:
        raise _unknown("tool format", name, list(_TOOLS))
    return _TOOLS[name]


def _unknown(kind: str, name: str, known: list[str]) -> ModelUnsupportedError:
    return ModelUnsupportedError(f"Unknown {kind}", found=name, remedy=", ".join([*known, _OFF]))
