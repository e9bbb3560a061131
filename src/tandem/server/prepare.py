"""From a request's bytes to sequences ready to submit.

Everything slow happens here (JSON, template, tokenizer, grammar), on a worker thread: a prompt of a million
tokens must not hold up the streams of others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.api import ModelCard, Service
from tandem.core.errors import ContextLengthError, RequestError
from tandem.core.log import get_logger
from tandem.core.requests import GenerationRequest, SamplingParams
from tandem.server.config import ServerConfig
from tandem.server.constraints import output_constraint, plan_tools
from tandem.server.generation import Choice
from tandem.server.schemas.chat import ChatFields, ChatRequest
from tandem.server.schemas.completions import CompletionRequest
from tandem.server.schemas.generation import GenerationFields
from tandem.server.schemas.parse import parse_request
from tandem.text.bundle import ChatPrompt, ConstraintSpec, OutputOptions, TextBundle

_log = get_logger("server")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request. ``echoes[i]`` is put before the text of choice i."""

    id: str
    model: str
    created: int
    choices: tuple[Choice, ...]
    wants_stream: bool
    wants_usage_chunk: bool
    wants_logprobs: bool
    echoes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prompt:
    tokens: tuple[int, ...]
    options: OutputOptions
    constraint: ConstraintSpec | None


def check_model(card: ModelCard, name: str | None) -> None:
    """Raises RequestError 404 unless ``name`` is the served id or an alias (or absent)."""
    if name is not None and not card.answers_to(name):
        raise RequestError(
            f"The model {name[:100]!r} is not served here",
            status=404,
            code="model_not_found",
            param="model",
            remedy=repr(card.id),
        )


def render_chat(text: TextBundle, request: ChatFields, *, with_tools: bool) -> ChatPrompt:
    """Raises RequestError 400 for messages or tools that cannot be rendered."""
    template_kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        template_kwargs["reasoning_effort"] = request.reasoning_effort
    continues = bool(request.continue_final_message)
    opens = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    prompt = text.encode_chat(
        request.messages,
        tools=request.tools if with_tools else None,
        add_generation_prompt=opens,
        continue_final_message=continues,
        template_kwargs=template_kwargs,
    )
    for note in prompt.notes:
        _log.warning("chat template: %s", note)
    return prompt


def prepare_chat(service: Service, config: ServerConfig, body: bytes) -> Prepared:
    """Raises RequestError (400, 404) or NotReadyError; nothing is submitted yet."""
    card, text = service.card, service.text
    request = parse_request(body, ChatRequest)
    check_model(card, request.model)
    tools = plan_tools(request)
    constraint = output_constraint(request)
    if constraint is not None and tools.in_prompt and constraint.kind not in ("json_object", "json_schema"):
        raise RequestError(
            "Beside tools the output can be constrained to JSON alone",
            param=constraint.param,
            code="unsupported_parameter",
            remedy='tool_choice "none", response_format, or no constraint',
        )
    prompt = render_chat(text, request, with_tools=tools.in_prompt)
    if tools.required:
        constraint = ConstraintSpec(
            kind="tools",
            tools=tools.declared,
            tool_name=tools.name,
            parallel_tool_calls=tools.parallel,
            param="tool_choice",
        )
    elif constraint is not None and tools.in_prompt:
        constraint = replace(constraint, tools=tools.declared, parallel_tool_calls=tools.parallel)
    budget = request.reasoning_budget_tokens
    if budget is None and (prompt.starts_in_reasoning or prompt.may_open_reasoning):
        budget = config.thinking_budget
    if constraint is not None or budget is not None:
        constraint = _within_reasoning(constraint or ConstraintSpec(param="thinking_budget"), prompt, budget)
    options = OutputOptions(
        chat=True,
        stops=request.stop or (),
        starts_in_reasoning=prompt.starts_in_reasoning,
        tools=tools.declared,
        parallel_tool_calls=tools.parallel,
        drop_tool_calls=tools.drop_calls,
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    one = _Prompt(prompt.tokens, options, constraint)
    return _prepared("chatcmpl", request, _Build(card, text, config), [one], request.logprob_count)


def _within_reasoning(spec: ConstraintSpec, prompt: ChatPrompt, budget: int | None) -> ConstraintSpec:
    return replace(
        spec,
        starts_in_reasoning=prompt.starts_in_reasoning,
        may_open_reasoning=prompt.may_open_reasoning,
        reasoning_budget_tokens=budget,
    )


def prepare_completion(service: Service, config: ServerConfig, body: bytes) -> Prepared:
    """Raises RequestError (400, 404) or NotReadyError; nothing is submitted yet."""
    card, text = service.card, service.text
    request = parse_request(body, CompletionRequest)
    check_model(card, request.model)
    constraint = output_constraint(request)
    options = OutputOptions(
        chat=False,
        stops=request.stop or (),
        skip_special_tokens=request.skip_special_tokens is not False,
    )
    if len(request.prompt) * (request.n or 1) > config.max_choices:
        raise _too_many("prompt", f"{len(request.prompt)} prompts of {request.n or 1} choices", config)
    prompts = []
    echoes = []
    for prompt in request.prompt:
        tokens = text.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise RequestError("The prompt is empty", param="prompt", code="invalid_value")
        _check_token_ids(tokens, text, "prompt")
        prompts.append(_Prompt(tokens, options, constraint))
        if request.echo:
            echo = prompt if isinstance(prompt, str) else text.tokenizer.decode(list(prompt))
            echoes += [echo] * (request.n or 1)
    return _prepared(
        "cmpl", request, _Build(card, text, config), prompts, request.logprobs, echoes=tuple(echoes)
    )


@dataclass(frozen=True, slots=True)
class _Build:
    card: ModelCard
    text: TextBundle
    config: ServerConfig


def _prepared(
    prefix: str,
    request: GenerationFields,
    build: _Build,
    prompts: list[_Prompt],
    logprobs: int | None,
    echoes: tuple[str, ...] = (),
) -> Prepared:
    """``n`` sequences of every prompt."""
    n = request.n or 1
    if n > build.config.max_choices:
        raise _too_many("n", str(n), build.config)
    request_id = f"{prefix}-{secrets.token_hex(12)}"
    stop_ids = _stop_token_ids(request, build.text)
    sampling_of = _sampling(request, build.text, logprobs)
    choices = []
    for prompt_index, prompt in enumerate(prompts):
        max_tokens = _token_limit(request, build.card, len(prompt.tokens))
        for nth in range(n):
            index = prompt_index * n + nth
            constraint = None if prompt.constraint is None else build.text.constraint(prompt.constraint)
            generation = GenerationRequest(
                request_id=f"{request_id}-{index}",
                prompt_tokens=prompt.tokens,
                sampling=sampling_of(index),
                max_tokens=max_tokens,
                stop_token_ids=stop_ids,
                constraint=constraint,
                reuse_prefix=request.cache_prompt is not False,
                guard_loops=not request.ignore_eos,
            )
            processor = build.text.output_processor(prompt.options)
            choices.append(Choice(index, prompt_index, generation, processor))
    return Prepared(
        id=request_id,
        model=build.card.id,
        created=int(time.time()),
        choices=tuple(choices),
        wants_stream=request.wants_stream,
        wants_usage_chunk=request.wants_usage_chunk,
        wants_logprobs=logprobs is not None,
        echoes=echoes,
    )


def _sampling(
    request: GenerationFields, text: TextBundle, logprobs: int | None
) -> Callable[[int], SamplingParams]:
    """The sampling of choice i. Choices differ in their seed alone; choice 0 has the request's own."""
    bias = request.logit_bias or ()
    for token, _ in bias:
        if token >= text.vocab_size:
            raise RequestError(
                f"logit_bias: token {token} is not in the vocabulary of {text.vocab_size}",
                param="logit_bias",
                code="invalid_value",
            )
    seed = secrets.randbits(62) if request.seed is None else request.seed
    defaults = text.sampling

    def build(index: int) -> SamplingParams:
        return SamplingParams(
            temperature=_given(request.temperature, defaults.temperature),
            top_p=_given(request.top_p, defaults.top_p),
            top_k=max(0, defaults.top_k if request.top_k is None else request.top_k),
            min_p=_given(request.min_p, defaults.min_p),
            presence_penalty=_given(request.presence_penalty, 0.0),
            frequency_penalty=_given(request.frequency_penalty, 0.0),
            repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
            logit_bias=bias,
            seed=(seed + index) % 2**63,
            logprobs=logprobs,
            min_tokens=request.min_tokens or 0,
        )

    return build


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_token_ids(request: GenerationFields, text: TextBundle) -> frozenset[int]:
    own = request.stop_token_ids or []
    _check_token_ids(own, text, "stop_token_ids")
    return frozenset(own) if request.ignore_eos else text.eos_token_ids | frozenset(own)


def _check_token_ids(tokens: tuple[int, ...] | list[int], text: TextBundle, param: str) -> None:
    largest = max(tokens, default=0)
    if largest >= text.vocab_size:
        raise RequestError(
            f"{param}: token {largest} is not in the vocabulary of {text.vocab_size}",
            param=param,
            code="invalid_value",
        )


def _token_limit(request: GenerationFields, card: ModelCard, prompt_tokens: int) -> int:
    """What may be generated: the request's limit, clipped to the context. At least one token must fit."""
    room = card.context_tokens - prompt_tokens
    if room < 1:
        error = ContextLengthError(
            prompt_tokens=prompt_tokens,
            context_tokens=card.context_tokens,
            max_tokens=1 if room == 0 else None,
        )
        if isinstance(request, CompletionRequest):
            error.param = "prompt"
        raise error
    return room if request.token_limit is None else min(room, request.token_limit)


def _too_many(param: str, found: str, config: ServerConfig) -> RequestError:
    return RequestError(
        f"{param}: at most {config.max_choices} choices can be generated at once",
        param=param,
        code="invalid_value",
        found=found,
    )
