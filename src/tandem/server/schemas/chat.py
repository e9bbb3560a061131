"""``POST /v1/chat/completions``"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from tandem.core.errors import RequestError
from tandem.server.schemas.fields import MAX_LOGPROBS, Integer, JsonObject, WordOrObject
from tandem.server.schemas.generation import GenerationFields

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_MESSAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "null"},
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    },
                },
            ]
        },
        "reasoning_content": {"type": ["string", "null"]},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_call_id": {"type": ["string", "null"]},
    },
}

_TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "type": {"const": "function", "default": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,256}$"},
                "description": {},
                "parameters": {"type": ["object", "null"]},
            },
        },
    },
}

_TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}},
                },
            },
        },
    ]
}

Message = Annotated[dict[str, Any], WithJsonSchema(_MESSAGE_SCHEMA)]
"""Checked where it is rendered (``TextBundle.encode_chat``), whose complaints name the message."""
Tool = Annotated[dict[str, Any], WithJsonSchema(_TOOL_SCHEMA)]
ToolChoice = Annotated[WordOrObject, WithJsonSchema(_TOOL_CHOICE_SCHEMA)]


class ChatFields(GenerationFields):
    """What is rendered into the prompt; ``/tokenize`` takes the same."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        default=None,
        description="Go on writing the last message instead of opening a new one.",
    )

    @model_validator(mode="after")
    def check_continuation(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
                code="invalid_value",
            )
        return self


class ChatRequest(ChatFields):
    logprobs: bool | None = None
    top_logprobs: Integer | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    thinking_budget: Integer | None = Field(
        default=None, ge=0, description="After so many reasoning tokens the answer begins."
    )
    thinking_token_budget: Integer | None = Field(default=None, ge=0, description="As thinking_budget.")
    modalities: list[str] | None = None

    @model_validator(mode="after")
    def check_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value"
            )
        if set(self.modalities or ()) - {"text"}:
            raise RequestError(
                "This server generates text only",
                param="modalities",
                code="unsupported_parameter",
                found=", ".join(self.modalities or ())[:80],
            )
        return self

    @property
    def reasoning_budget_tokens(self) -> int | None:
        return self.thinking_token_budget if self.thinking_budget is None else self.thinking_budget

    @property
    def logprob_count(self) -> int | None:
        """None = no log probabilities asked."""
        return (self.top_logprobs or 0) if self.logprobs else None
