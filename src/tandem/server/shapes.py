"""Answers as OpenAI shapes them, whole and in chunks, for both generation routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tandem.core.outputs import Delta
from tandem.core.requests import TokenLogprob
from tandem.server.logprobs import CompletionLogprobs, chat_logprobs
from tandem.server.prepare import Prepared
from tandem.text.tokenizer import Tokenizer

Json = dict[str, Any]


class AnswerShape(Protocol):
    """Turns events into JSON. One object serves one request."""

    def opening(self, index: int) -> Json | None:
        """The chunk before a choice's first piece."""
        ...

    def piece(self, index: int, delta: Delta) -> Json: ...

    def ended(self, index: int, reason: str) -> Json: ...

    def usage_chunk(self, usage: Json) -> Json: ...

    def whole(self, index: int, deltas: list[Delta], reason: str) -> Json:
        """One finished choice of an answer that is not streamed."""
        ...

    def answer(self, choices: list[Json], usage: Json) -> Json: ...


class _Envelope:
    def __init__(self, prepared: Prepared, kind: str, chunk_kind: str) -> None:
        self._kind = kind
        self._chunk_kind = chunk_kind
        self._has_usage = prepared.wants_usage_chunk
        self._head = {"id": prepared.id, "created": prepared.created, "model": prepared.model}

    def chunk(self, choices: list[Json]) -> Json:
        chunk = {**self._head, "object": self._chunk_kind, "choices": choices}
        if self._has_usage:
            chunk["usage"] = None
        return chunk

    def usage_chunk(self, usage: Json) -> Json:
        return {**self.chunk([]), "usage": usage}

    def answer(self, choices: list[Json], usage: Json) -> Json:
        return {**self._head, "object": self._kind, "choices": choices, "usage": usage}


class ChatShape:
    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self._envelope = _Envelope(prepared, "chat.completion", "chat.completion.chunk")
        self._wants_logprobs = prepared.wants_logprobs
        self._tokenizer = tokenizer

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> Json:
        fields: Json = {}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.content:
            fields["content"] = delta.content
        if delta.tool_calls:
            fields["tool_calls"] = [_call_chunk(call) for call in delta.tool_calls]
        return self._chunk(index, fields, logprobs=delta.logprobs)

    def ended(self, index: int, reason: str) -> Json:
        return self._chunk(index, {}, reason=reason)

    def _chunk(
        self, index: int, delta: Json, reason: str | None = None, logprobs: Iterable[TokenLogprob] = ()
    ) -> Json:
        entries = tuple(logprobs)
        return self._envelope.chunk(
            [
                {
                    "index": index,
                    "delta": delta,
                    "logprobs": self._logprobs(entries) if entries else None,
                    "finish_reason": reason,
                }
            ]
        )

    def _logprobs(self, entries: Iterable[TokenLogprob]) -> Json | None:
        return chat_logprobs(entries, self._tokenizer) if self._wants_logprobs else None

    def usage_chunk(self, usage: Json) -> Json:
        return self._envelope.usage_chunk(usage)

    def whole(self, index: int, deltas: list[Delta], reason: str) -> Json:
        content = "".join(delta.content for delta in deltas)
        reasoning = "".join(delta.reasoning for delta in deltas)
        calls = _joined_calls(deltas)
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["content"] = content if content.strip() else None
            message["tool_calls"] = calls
        entries = [entry for delta in deltas for entry in delta.logprobs]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(entries),
            "finish_reason": reason,
        }

    def answer(self, choices: list[Json], usage: Json) -> Json:
        return self._envelope.answer(choices, usage)


def _call_chunk(call: Any) -> Json:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _joined_calls(deltas: list[Delta]) -> list[Json]:
    calls: dict[int, Json] = {}
    for part in (call for delta in deltas for call in delta.tool_calls):
        call = calls.setdefault(
            part.index, {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}
        )
        call["function"]["arguments"] += part.arguments
    return [calls[index] for index in sorted(calls)]


class CompletionShape:
    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self._envelope = _Envelope(prepared, "text_completion", "text_completion")
        self._echoes = prepared.echoes
        self._logprobs = {
            choice.index: CompletionLogprobs(tokenizer)
            for choice in prepared.choices
            if prepared.wants_logprobs
        }

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, self._echoes[index]) if self._echoes else None

    def piece(self, index: int, delta: Delta) -> Json:
        return self._chunk(index, delta.content, logprobs=delta.logprobs)

    def ended(self, index: int, reason: str) -> Json:
        return self._chunk(index, "", reason=reason)

    def _chunk(
        self, index: int, text: str, reason: str | None = None, logprobs: Iterable[TokenLogprob] = ()
    ) -> Json:
        return self._envelope.chunk([self._choice(index, text, reason, logprobs)])

    def _choice(self, index: int, text: str, reason: str | None, logprobs: Iterable[TokenLogprob]) -> Json:
        taken = self._logprobs[index].take(logprobs) if index in self._logprobs else None
        return {"index": index, "text": text, "logprobs": taken, "finish_reason": reason}

    def usage_chunk(self, usage: Json) -> Json:
        return self._envelope.usage_chunk(usage)

    def whole(self, index: int, deltas: list[Delta], reason: str) -> Json:
        echo = self._echoes[index] if self._echoes else ""
        text = echo + "".join(delta.content for delta in deltas)
        return self._choice(index, text, reason, [entry for delta in deltas for entry in delta.logprobs])

    def answer(self, choices: list[Json], usage: Json) -> Json:
        return self._envelope.answer(choices, usage)
