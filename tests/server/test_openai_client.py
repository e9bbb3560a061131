"""The openai package as the client: chat, streams, tools, models, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import openai
import pytest
from harness import MODEL, Opens, StubServer
from stub_engine import Script, say
from stub_model import HERMES_TEMPLATE

from tandem.server.config import ServerConfig

pytestmark = pytest.mark.anyio
KEY = "secret"
SCRIPTS = {
    "weather": say('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
    "slow": say("ok", prefill_delay_s=0.2),
    "bad": say("abc", slot_fault_at=2),
    "json": Script((b"{}",)),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture
async def stub(opens: Opens) -> AsyncIterator[StubServer]:
    config = ServerConfig(api_keys=(KEY,), keepalive_s=0.05)
    async with opens(SCRIPTS, template=HERMES_TEMPLATE, config=config) as server:
        yield server


@pytest.fixture
async def client(stub: StubServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=KEY, base_url="http://localhost/v1", http_client=stub.client, max_retries=0
    ) as client:
        yield client


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=user("hi"), logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].token == "H"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_stream_with_comments(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=user("slow"), stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "ok"
    assert chunks[-1].usage.completion_tokens == 3


async def test_the_clients_own_stream_helper_assembles_a_tool_call(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=user("weather"), tools=TOOLS) as stream:
        async for _ in stream:
            pass
        message = (await stream.get_final_completion()).choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    history = [
        *user("weather"),
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
        *user("json"),
    ]
    again = await client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
    assert again.choices[0].message.content == "{}"


async def test_completions_and_models(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="alias", prompt=["a", "b"], max_tokens=3, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["Hel", "Hel"]
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2]
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve("alias")).id == MODEL


async def test_errors(client: openai.AsyncOpenAI, stub: StubServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=user("hi"), temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model=MODEL, messages=user("x" * 9000), stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt-4o", messages=user("hi"))
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model=MODEL, input="hi")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=user("hi"))
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model=MODEL, messages=user("bad"))
    stream = await client.chat.completions.create(model=MODEL, messages=user("bad"), stream=True)
    with pytest.raises(openai.APIError, match="finite"):
        async for _ in stream:
            pass
