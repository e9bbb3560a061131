"""Shapes of the answers, for the OpenAPI document. The routes build plain dictionaries."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorBody


class CachedTokens(BaseModel):
    cached_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class UsageAnswer(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TimingsAnswer(BaseModel):
    queue_ms: float
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    cached_n: int


class FunctionCall(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    timings: TimingsAnswer


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer
    timings: TimingsAnswer


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    context_length: int
    aliases: list[str]
    details: dict[str, str]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    prompt: str | None = Field(default=None, description="The rendered prompt, for messages.")
    token_strs: list[str] | None = None


class Detokenized(BaseModel):
    prompt: str


class Pages(BaseModel):
    total: int
    free: int
    cached: int
    live: int


class HealthReport(BaseModel):
    status: Literal["ok", "loading", "stalled", "failed", "stopping"]
    model: str
    progress: float
    detail: str
    running: int
    waiting: int
    pages: Pages
    uptime_s: float
    version: str
