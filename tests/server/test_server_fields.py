"""Every field: ranges, null, ignored, refused. Cases B6, C14, D3, D4, D8, E2, F1, F4, H6, H7, I3, O5."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Any

import pytest
from harness import JSON, MODEL, Opens, StubServer, assert_error
from stub_model import GLM_TEMPLATE

from tandem.core.requests import SamplingDefaults

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("temperature", True),
        ("top_p", 1.1), ("top_p", -0.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("n", 0), ("n", 17),
        ("n", "2"), ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
        ("seed", 1.5), ("seed", "1"), ("seed", 2**63), ("max_tokens", 0), ("max_tokens", -1),
        ("max_tokens", "5"), ("max_completion_tokens", 0), ("min_tokens", -1), ("ignore_eos", "yes"),
        ("stream", "true"), ("stream", 1), ("stream_options", []), ("stop_token_ids", [-1]),
        ("stop_token_ids", [10**9]), ("stop_token_ids", "1"), ("messages", []), ("messages", "hi"),
        ("messages", None), ("tools", {}), ("tool_choice", 5), ("parallel_tool_calls", "no"),
        ("reasoning_effort", "banana"), ("chat_template_kwargs", []), ("response_format", "json"),
        ("response_format", {"type": "xml"}), ("thinking_budget", -1), ("logprobs", 3),
        ("model", 5), ("guided_choice", []), ("guided_regex", ""),
    ],
)  # fmt: skip
async def test_wrong_types_and_ranges_name_the_field(server: StubServer, field: str, value: Any) -> None:
    response = await server.chat(**{field: value})
    assert_error(response, 400)
    assert response.json()["error"]["param"].split(".")[0].split("[")[0] == field
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_temperature_that_is_no_number(server: StubServer, literal: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "temperature": {literal}}}'
    response = await server.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert_error(response, 400, param="temperature")
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "metadata": {{"x": {literal}}}}}'
    response = await server.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert response.status_code == (200 if literal == "1e999" else 400)


@pytest.mark.parametrize("stop", [None, [], "x", ["x", "y"], [str(n) for n in range(5)], ["z" * 1000]])
async def test_b6_stop_values_accepted(server: StubServer, stop: Any) -> None:
    assert (await server.chat(stop=stop)).status_code == 200


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], 1, {}, ["x" * 10_000], ["x"] * 17, [None]])
async def test_b6_stop_values_refused(server: StubServer, stop: Any) -> None:
    assert_error(await server.chat(stop=stop), 400, param="stop")
    await server.alive()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", [None, [], [TOOL]])
@pytest.mark.parametrize("choice", [None, "auto", "none", "required"])
async def test_c14_empty_or_absent_tools(
    server: StubServer, tools: list[Any] | None, choice: str | None, stream: bool
) -> None:
    if tools and choice == "required":
        return  # a call, see C12
    response = await server.chat(tools=tools, tool_choice=choice, stream=stream)
    if choice == "required":
        assert_error(response, 400, param="tool_choice")
    else:
        assert response.status_code == 200


@pytest.mark.parametrize(
    "choice",
    [
        "always",
        {"type": "function", "function": {"name": "nope"}},
        {"type": "function"},
        {"type": "allowed_tools"},
        [],
    ],
)
async def test_c14_choices_that_cannot_be_met(server: StubServer, choice: Any) -> None:
    assert_error(await server.chat(tools=[TOOL], tool_choice=choice, stream=True), 400, param="tool_choice")


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max", None])
async def test_d3_reasoning_effort_reaches_the_prompt(opens: Opens, effort: str | None) -> None:
    rung = {"medium": "high", "high": "high", "xhigh": "max", "max": "max", None: None}.get(effort, "low")
    async with opens(template=GLM_TEMPLATE) as server:
        for fields in ({"reasoning_effort": effort}, {"chat_template_kwargs": {"reasoning_effort": effort}}):
            assert (await server.chat(**fields)).status_code == 200
            assert ("effort " + str(rung) in server.engine.prompts[-1]) == (rung is not None)
            body = {"messages": [{"role": "user", "content": "hi"}], **fields}
            shown = (await server.client.post("/tokenize", json=body)).json()["prompt"]
            assert shown == server.engine.prompts[-1]
        assert_error(await server.chat(chat_template_kwargs={"reasoning_effort": "banana"}), 400)


@pytest.mark.parametrize("kwargs", [{"enable_thinking": False}, {"thinking": False}, {"zzz": 1}])
async def test_d4_thinking_switches(
    opens: Opens, kwargs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tandem.server"):
        async with opens(template=GLM_TEMPLATE) as server:
            assert (await server.chat(chat_template_kwargs=kwargs)).status_code == 200
            assert ("effort low" in server.engine.prompts[-1]) == ("zzz" not in kwargs)
    assert "chat template:" in caplog.text


@pytest.mark.parametrize(
    "field", ["thinking_budget_tokens", "reasoning_budget", "max_thinking_tokens", "thinking", "reasoning"]
)
async def test_d8_budgets_in_other_forms_are_refused(server: StubServer, field: str) -> None:
    value = {"budget_tokens": 64} if field in {"thinking", "reasoning"} else 64
    assert_error(await server.chat(**{field: value}), 400, "unsupported_parameter", field)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_e2_stream_options(server: StubServer, options: Any) -> None:
    for stream in (True, False):
        assert (await server.chat(stream=stream, stream_options=options)).status_code == 200
    assert (await server.chat(stream=False, stream_options={"include_usage": True})).status_code == 200


@pytest.mark.parametrize(("fields"), [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}])
async def test_f1_logprobs_that_cannot_be(server: StubServer, fields: dict[str, Any]) -> None:
    assert_error(await server.chat(**fields), 400, param="top_logprobs")


@pytest.mark.parametrize(
    "bias",
    [
        {"99999999": 5},
        {"abc": 1},
        {"1": 500},
        {"1": "5"},
        {"1": None},
        {"-1": 5},
        {"²": 1},
        [],
        "x",
        {"1": True},
    ],
)
async def test_f4_bad_logit_bias(server: StubServer, bias: Any) -> None:
    assert_error(await server.chat(logit_bias=bias), 400, param="logit_bias")
    await server.alive()


IGNORED: dict[str, Any] = {
    "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True, "user": "me",
    "safety_identifier": "x", "prompt_cache_key": "y", "verbosity": "low", "prediction": None,
    "modalities": ["text"], "chat_id": "c",
}  # fmt: skip
NULLS = (
    "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "max_tokens", "max_completion_tokens",
    "stream", "stream_options", "logit_bias", "logprobs", "top_logprobs", "presence_penalty", "tools",
    "frequency_penalty", "repetition_penalty", "tool_choice", "parallel_tool_calls", "response_format",
    "reasoning_effort", "chat_template_kwargs", "suffix", "best_of", "audio", "functions", "function_call",
    "modalities", "stop_token_ids", "min_tokens", "ignore_eos", "model", "thinking", "reasoning",
)  # fmt: skip


async def test_h6_fields_clients_send_anyway(server: StubServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tandem"):
        for fields in ({}, *({name: value} for name, value in IGNORED.items()), IGNORED):
            assert (await server.chat(**fields)).status_code == 200, fields
        nulls = dict.fromkeys(NULLS)
        for fields in (*({name: None} for name in NULLS), nulls):
            assert (await server.chat(**fields)).status_code == 200, fields
        for field, value in (
            ("name", "ann"), ("refusal", None), ("audio", None), ("annotations", []),
            ("reasoning_details", [{"x": 1}]), ("id", "m1"), ("cache_control", {"type": "ephemeral"}),
        ):  # fmt: skip
            messages = [{"role": "user", "content": "hi", field: value}]
            assert (await server.chat(messages=messages)).status_code == 200, field
    assert "unknown fields" not in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modalities", ["audio"]),
        ("best_of", 3),
        ("suffix", "}"),
        ("audio", {"voice": "x"}),
        ("functions", [{}]),
    ],
)
async def test_h7_known_but_unsupported_is_refused(server: StubServer, field: str, value: Any) -> None:
    assert_error(await server.chat(**{field: value}), 400, "unsupported_parameter", field)


async def test_h7_unknown_fields_are_named_in_the_log(
    server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tandem.server"):
        assert (await server.chat(max_completion_token=8)).status_code == 200
        assert (await server.chat(**{"evil\nline": 1})).status_code == 200
    assert "'max_completion_token'" in caplog.text
    assert "evil\nline" not in caplog.text


@pytest.mark.parametrize(("field", "value"), [("suffix", "}"), ("best_of", 2)])
async def test_i3_suffix_and_best_of(server: StubServer, field: str, value: Any) -> None:
    assert_error(await server.complete(**{field: value}), 400, "unsupported_parameter", field)


@pytest.mark.parametrize("field", ["tools", "thinking_budget", "n_predict", "grammar"])
async def test_what_completions_cannot_do_is_refused(server: StubServer, field: str) -> None:
    value = {"tools": [TOOL], "grammar": "x"}.get(field, 5)
    assert_error(await server.complete(**{field: value}), 400, "unsupported_parameter", field)
    assert (await server.complete(max_completion_tokens=2, max_tokens=5)).json()["choices"][0]["text"] == "He"


async def test_whole_numbers_written_as_floats(server: StubServer) -> None:
    body = b'{"prompt": "hi", "max_tokens": 2.0, "temperature": 0, "seed": 7.0, "top_k": 3}'
    response = await server.client.post("/v1/completions", content=body, headers=JSON)
    assert response.json()["choices"][0]["text"] == "He"


async def test_min_tokens_above_the_limit(server: StubServer) -> None:
    assert_error(await server.chat(min_tokens=5, max_tokens=4), 400, param="min_tokens")


async def test_both_generation_prompt_and_continuation(server: StubServer) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    response = await server.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert_error(response, 400, param="continue_final_message")


async def test_sampling_reaches_the_engine(server: StubServer) -> None:
    asked = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.05, "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "repetition_penalty": 1.3, "seed": 11, "min_tokens": 2,
    }  # fmt: skip
    await server.chat(**asked, logit_bias={"65": -3}, stop_token_ids=[66], ignore_eos=True, max_tokens=3)
    spec = server.engine.sampling[-1]
    assert {name: getattr(spec.sampling, name) for name in asked} == asked
    assert spec.sampling.logit_bias == ((65, -3.0),)
    assert spec.stop_token_ids == {66}
    await server.chat(top_k=-1, stop_token_ids=[66])
    spec = server.engine.sampling[-1]
    assert spec.sampling.top_k == 0
    assert spec.stop_token_ids == {66} | server.service.text.eos_token_ids


async def test_what_a_request_leaves_out_is_the_models_own(server: StubServer) -> None:
    server.service.text.sampling = SamplingDefaults(0.6, 0.95, 20, 0.1, 1.05)
    await server.chat(temperature=None)
    sampling = server.engine.sampling[-1].sampling
    own = {name: getattr(sampling, name) for name in asdict(SamplingDefaults())}
    assert own == asdict(SamplingDefaults(0.6, 0.95, 20, 0.1, 1.05))
    await server.chat(temperature=0, top_p=1, top_k=0, min_p=0, repetition_penalty=1)
    assert server.engine.sampling[-1].sampling.temperature == 0
    assert server.engine.sampling[-1].sampling.top_k == 0


async def test_errors_do_not_echo_long_input(server: StubServer) -> None:
    body = json.dumps({"messages": "x" * 100_000, "model": MODEL})
    response = await server.client.post("/v1/chat/completions", content=body, headers=JSON)
    assert_error(response, 400)
    assert len(response.content) < 1000
