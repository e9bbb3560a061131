"""``POST /v1/completions``, ``/tokenize`` and ``/detokenize``"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from tandem.core.errors import RequestError
from tandem.server.schemas.chat import ChatFields
from tandem.server.schemas.fields import MAX_LOGPROBS, Integer, TokenId
from tandem.server.schemas.generation import GenerationFields
from tandem.server.schemas.parse import RequestModel

Prompt = str | tuple[int, ...]
"""Text, or token ids as they are."""


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """All four forms of ``prompt`` as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise ValueError(
            "must be a string, a list of strings, token ids or lists of token ids, and not empty"
        )
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(_is_token_id(item) for item in value):
        return (_token_ids(value),)
    if all(isinstance(item, list) for item in value):
        return tuple(_token_ids(item) for item in value)
    raise ValueError("must be all strings, all token ids, or all lists of token ids")


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1


def _token_ids(values: list[Any]) -> tuple[int, ...]:
    if not values:
        raise ValueError("a list of token ids is empty")
    if not all(_is_token_id(value) and value >= 0 for value in values):
        raise ValueError("token ids must be whole numbers, 0 or larger")
    return tuple(int(value) for value in values)


_IDS_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}

Prompts = Annotated[
    tuple[Prompt, ...],
    BeforeValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "string"}},
                _IDS_SCHEMA,
                {"type": "array", "minItems": 1, "items": _IDS_SCHEMA},
            ]
        }
    ),
]


class CompletionRequest(GenerationFields):
    prompt: Prompts
    echo: bool | None = None
    logprobs: Integer | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def check_completion(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise RequestError(
                "Log probabilities of an echoed prompt are not supported",
                param="echo",
                code="unsupported_parameter",
                remedy="ask for echo or logprobs",
            )
        return self


class TokenizeTextRequest(RequestModel):
    """vLLM's shape; ``content`` is llama.cpp's name of ``prompt``."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = Field(default=None, description="Default: as completions do.")
    return_token_strs: bool | None = None

    @property
    def text(self) -> str:
        text = self.content if self.prompt is None else self.prompt
        if text is None:
            raise RequestError("prompt is required", param="prompt", code="missing_required_parameter")
        return text


class TokenizeChatRequest(ChatFields):
    """Messages as chat would take them; the answer also shows the rendered prompt."""

    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: list[TokenId]
