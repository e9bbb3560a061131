"""Fields that chat and text completions share."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tandem.core.errors import RequestError
from tandem.server.schemas.fields import (
    Integer,
    LogitBias,
    Number,
    Positive,
    SchemaText,
    SchemaValue,
    Seed,
    Stops,
    TokenId,
)
from tandem.server.schemas.parse import RequestModel

UNSUPPORTED_FIELDS = {
    "best_of": "returns one candidate a choice; use n",
    "suffix": "infilling is not supported",
    "audio": "audio output is not supported",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "use_beam_search": "beam search is not supported",
    "length_penalty": "beam search is not supported",
    "echo": "only /v1/completions echoes its prompt",
    "tools": "use /v1/chat/completions",
    "thinking_budget": "only /v1/chat/completions knows reasoning",
    "thinking_token_budget": "only /v1/chat/completions knows reasoning",
    "truncate_prompt_tokens": "a prompt is never cut; shorten it",
    "n_predict": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "grammar": "use guided_grammar",
    "json_schema": "use response_format",
    "include_stop_str_in_output": "a stop string is never part of the output",
    "prompt_logprobs": "log probabilities of the prompt are not supported",
    "web_search_options": "the server does not search the web",
    "thinking_budget_tokens": "use thinking_budget",
    "reasoning_budget": "use thinking_budget",
    "max_thinking_tokens": "use thinking_budget",
    "thinking": "use thinking_budget, reasoning_effort or chat_template_kwargs",
    "reasoning": "use thinking_budget or reasoning_effort",
    "dry_multiplier": "this sampler is not supported",
    "xtc_probability": "this sampler is not supported",
    "typical_p": "this sampler is not supported",
    "mirostat": "this sampler is not supported",
    "top_a": "this sampler is not supported",
    "tfs": "this sampler is not supported",
    "dynatemp_range": "this sampler is not supported",
}
"""Known fields that would change the output: refused unless they ask for nothing."""

_ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "typical_p": (1, 1.0),
    "tfs": (1, 1.0),
    "length_penalty": (1, 1.0),
}


class StreamOptions(RequestModel):
    include_usage: bool | None = None


class JsonSchemaFormat(RequestModel):
    """``schema`` is the JSON Schema; ``name`` and ``strict`` are accepted (output is always strict)."""

    name: str | None = None
    description: str | None = None
    json_schema: SchemaValue | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(RequestModel):
    """Exactly one way to constrain the output."""

    json_: SchemaText | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = Field(default=None, min_length=1)
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = Field(default=None, min_length=1)


class GenerationFields(RequestModel):
    """Sampling, limits, constraints and streaming."""

    model: str | None = Field(
        default=None, description="The served id or an alias; default: the served model."
    )
    temperature: Number | None = Field(default=None, ge=0, le=2)
    top_p: Number | None = Field(default=None, ge=0, le=1)
    top_k: Integer | None = Field(default=None, ge=-1, description="0 or -1 = off.")
    min_p: Number | None = Field(default=None, ge=0, le=1)
    presence_penalty: Number | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Number | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: Number | None = Field(default=None, gt=0, le=10)
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    stop_token_ids: list[TokenId] | None = Field(default=None, max_length=64)
    min_tokens: Integer | None = Field(default=None, ge=0)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    cache_prompt: bool | None = Field(default=None, description="False: compute the whole prompt.")
    n: Positive | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = Field(default=None, description="Wins over max_tokens.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | None = None
    guided_regex: str | None = Field(default=None, min_length=1)
    guided_choice: list[str] | None = Field(default=None, min_length=1)
    guided_grammar: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: dict[str, Any]) -> dict[str, Any]:
        for name, remedy in UNSUPPORTED_FIELDS.items():
            value = data.get(name)
            if name in cls.model_fields or not value or value in _ASKS_FOR_NOTHING.get(name, ()):
                continue
            raise _refusal(name, remedy)
        return data

    @model_validator(mode="after")
    def check_limits(self) -> Self:
        limit = self.token_limit
        if self.min_tokens is not None and limit is not None and self.min_tokens > limit:
            raise RequestError(
                "min_tokens is larger than the limit of tokens to generate",
                param="min_tokens",
                code="invalid_value",
                found=f"{self.min_tokens} > {limit}",
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wants_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def _refusal(name: str, remedy: str) -> RequestError:
    return RequestError(f"{name} is not supported", param=name, code="unsupported_parameter", remedy=remedy)
