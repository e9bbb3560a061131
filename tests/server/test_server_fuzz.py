"""Random values in random fields: an answer or the error envelope, never a 500, and the server goes on."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from harness import JSON, StubServer, assert_error

pytestmark = pytest.mark.anyio

SCALARS: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, 1.0, -0.0, 1e308, 2**63, -(2**64), "", "a", "0", "null", "\x00",
    "é😀", "a" * 3000, "auto", "none", "required", "text", "json_object", "low", "user", "assistant",
    "tool", [], {},
]  # fmt: skip
FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "n", "max_completion_tokens",
    "stream", "stream_options", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logprobs", "top_logprobs", "tools", "tool_choice", "model", "echo",
    "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "add_generation_prompt", "suffix",
    "continue_final_message", "thinking_budget", "modalities", "best_of", "messages", "prompt", "tokens",
    "content", "add_special_tokens", "return_token_strs", "functions", "metadata", "unheard_of",
)  # fmt: skip
KEYS = (
    "type", "function", "name", "parameters", "role", "content", "text", "image_url", "tool_calls", "id", "1",
    "arguments", "tool_call_id", "reasoning_content", "schema", "json_schema", "include_usage", "regex",
    "json", "choice", "properties", "required", "enum", "anyOf", "$ref", "items", "-5", "x",
)  # fmt: skip


def value(source: random.Random, depth: int = 0) -> Any:
    kind = source.random()
    if depth > 3 or kind < 0.5:
        return source.choice(SCALARS)
    if kind < 0.7:
        return [value(source, depth + 1) for _ in range(source.randint(0, 3))]
    return {source.choice(KEYS): value(source, depth + 1) for _ in range(source.randint(0, 4))}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_no_body_breaks_the_server(server: StubServer, path: str) -> None:
    source = random.Random(path)
    statuses = set()
    for _ in range(150):
        body: dict[str, Any] = {"max_tokens": 3}
        if path == "/v1/chat/completions" or (path == "/tokenize" and source.random() < 0.5):
            body["messages"] = [{"role": "user", "content": "hi"}]
        else:
            body |= {"prompt": "hi", "tokens": [104, 105]}
        for field in source.sample(FIELDS, source.randint(1, 3)):
            body[field] = value(source)
        response = await server.client.post(path, content=json.dumps(body), headers=JSON)
        statuses.add(response.status_code)
        if response.status_code != 200:
            assert response.status_code in {400, 404}, (body, response.text)
            assert_error(response, response.status_code)
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert "error" not in response.text, body
    assert statuses >= {200, 400}
    await server.alive()
