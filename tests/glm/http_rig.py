"""A tiny GLM behind the real server, and a client that puts streams together as clients do."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tandem.api import Service
from tandem.api.load import open_service
from tandem.core.options import LoadOptions
from tandem.core.progress import Silent
from tandem.core.settings import read_environment
from tandem.server.app import create_app
from tandem.server.config import ServerConfig

from .chat_template import GLM_TEMPLATE
from .golden import DATA
from .tiny import Oracle, text_config

USER = {"role": "user", "content": "What is the time in Oslo, and what is it in Lima?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Lima"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 3},
            },
            "required": ["city", "days"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


def write_checkpoint(folder: Path, layers: int = 3) -> Path:
    """A random model in safetensors under the released names, with tokenizer and chat template. Three layers
    are one of every kind.
    """
    Oracle(text_config(vocab_size=1024, num_hidden_layers=layers), seed=9).save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(DATA / name, folder / name)
    (folder / "chat_template.jinja").write_text(GLM_TEMPLATE)
    return folder


def open_glm(folder: Path, **options: Any) -> Service:
    """Load the folder as ``tandem serve`` does, on one CPU card unless other ``options`` are given."""
    made = {"served_names": ("glm",), "threads": 1, **options}
    return open_service(LoadOptions(model=str(folder), **made), read_environment(), Silent())


@dataclass
class Answer:
    """One choice, streamed or not."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None

    @property
    def arguments(self) -> list[Any]:
        return [json.loads(call["function"]["arguments"]) for call in self.calls]


@dataclass
class GlmClient:
    http: httpx.AsyncClient

    async def send(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        body = {"model": "glm", "messages": list(messages) or [USER], "temperature": 0, "max_tokens": 24}
        return await self.http.post("/v1/chat/completions", json=body | fields)

    async def chat(self, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        response = await self.send(*messages, **fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def answers(self, *messages: dict[str, Any], stream: bool, **fields: Any) -> list[Answer]:
        """Every choice."""
        if not stream:
            return [_whole(choice) for choice in (await self.chat(*messages, **fields))["choices"]]
        response = await self.send(*messages, **fields, stream=True)
        assert response.headers["content-type"].startswith("text/event-stream"), response.text
        return join(chunks(response.text))

    async def both(self, *messages: dict[str, Any], **fields: Any) -> Answer:
        """Ask in both modes; they must agree but for the ids of calls."""
        (whole,) = await self.answers(*messages, stream=False, **fields)
        (streamed,) = await self.answers(*messages, stream=True, **fields)
        assert (whole.content, whole.reasoning, whole.finish) == (
            streamed.content,
            streamed.reasoning,
            streamed.finish,
        )
        assert [c["function"] for c in whole.calls] == [c["function"] for c in streamed.calls]
        return streamed

    async def rendered(self, *messages: dict[str, Any], **fields: Any) -> str:
        """The prompt's text, from the server itself."""
        response = await self.http.post("/tokenize", json={"messages": list(messages)} | fields)
        assert response.status_code == 200, response.text
        return str(response.json()["prompt"])

    async def complete(self, prompt: list[int], **fields: Any) -> dict[str, Any]:
        """A completion of token ids, greedy, with the five likeliest tokens of every step."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 4, "logprobs": 5} | fields
        response = await self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    found = [json.loads(line) for line in lines[:-1]]
    assert not any("error" in chunk for chunk in found), found[-1]
    return found


def join(found: list[dict[str, Any]]) -> list[Answer]:
    """The choices of a stream. Checks what clients rely on in the deltas of calls."""
    answers: dict[int, Answer] = {}
    for choice in (choice for chunk in found for choice in chunk["choices"]):
        answer = answers.setdefault(choice["index"], Answer())
        delta = choice["delta"]
        answer.content += delta.get("content") or ""
        answer.reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", []):
            if part["index"] == len(answer.calls):
                assert part["id"]
                assert part["type"] == "function"
                assert part["function"]["name"]
                answer.calls.append({"id": part["id"], "function": {**part["function"]}})
            else:
                assert "name" not in part["function"]
                answer.calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        assert answer.finish is None or choice["finish_reason"] is None
        answer.finish = answer.finish or choice["finish_reason"]
    return [answers[index] for index in sorted(answers)]


def _whole(choice: dict[str, Any]) -> Answer:
    message = choice["message"]
    assert "content" in message
    return Answer(
        message["content"] or "",
        message.get("reasoning_content") or "",
        message.get("tool_calls") or [],
        choice["finish_reason"],
    )


@contextlib.asynccontextmanager
async def client_of(service: Service, **config: Any) -> AsyncIterator[GlmClient]:
    """In this process: httpx talks to the application directly."""
    transport = httpx.ASGITransport(create_app(service, ServerConfig(**config)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=60) as http:
        yield GlmClient(http)
