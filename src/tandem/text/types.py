"""What passes between the text room and its callers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ConstraintKind = Literal["json_object", "json_schema", "regex", "grammar", "tools"]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation."""

    tokens: tuple[int, ...]
    text: str
    """What ``tokens`` spell, control tokens included; for debugging and logs."""
    starts_in_reasoning: bool
    """The prompt ends inside an open reasoning block, so the first generated token belongs to it."""
    may_open_reasoning: bool = False
    """The model knows reasoning and the prompt neither opened nor closed a block: the output may open one."""
    notes: tuple[str, ...] = ()
    """Template arguments that this model's template does not take, worth a log line."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How one sequence's tokens are turned into a message."""

    chat: bool = True
    """False for plain completions: no reasoning and no tool calls are looked for."""
    stops: tuple[str, ...] = ()
    """Stop strings, none empty; they act on visible content only, never on reasoning or tool calls."""
    starts_in_reasoning: bool = False
    """From ``ChatPrompt``."""
    tools: tuple[dict[str, Any], ...] = ()
    """Declared tools in OpenAI's shape; without any, calls are plain content."""
    parallel_tool_calls: bool = True
    """False: the first call is delivered, later ones are dropped."""
    drop_tool_calls: bool = False
    """For tool_choice "none": calls of the declared tools are recognised and left out of the message."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text (those that mark reasoning and calls are always read)."""


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What may be generated. ``kind`` None with a ``reasoning_budget_tokens`` limits the reasoning alone."""

    kind: ConstraintKind | None = None
    json_schema: dict[str, Any] | bool | None = None
    """For ``json_schema``. It is always enforced in full, whatever ``strict`` says: what cannot be enforced
    is refused."""
    regex: str | None = None
    """For ``regex``: the whole answer matches it (Rust regex syntax)."""
    grammar: str | None = None
    """For ``grammar``: Lark or GBNF text."""
    tools: tuple[dict[str, Any], ...] = field(default=())
    """For ``tools``: the declared tools; at least one call must be made. For ``json_object`` and
    ``json_schema``: the answer is JSON or else calls of these, if the model has a format for calls."""
    tool_name: str | None = None
    """For ``tools``: exactly this tool must be called, once."""
    parallel_tool_calls: bool = True
    starts_in_reasoning: bool = False
    """From ``ChatPrompt``: the constraint begins with the first content token."""
    may_open_reasoning: bool = False
    """From ``ChatPrompt``: the answer may open a reasoning block before the constraint begins."""
    reasoning_budget_tokens: int | None = None
    """After so many reasoning tokens the block is closed by force. 0 closes it at once."""
    param: str = "response_format"
    """The request field named by a RequestError when the constraint cannot be compiled."""
