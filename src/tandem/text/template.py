"""Chat templates: the model's own Jinja text, in a sandbox, with what such templates are written against."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.core.errors import ModelDamagedError, RequestError
from tandem.text.markers import CONTINUE_MARK

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


class TemplateRefusal(jinja2.TemplateError):
    """The template called ``raise_exception``: this conversation is not one it renders."""


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %} … {% endgeneration %}`` marks trained text; for a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's type is jinja2's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, *, origin: str, special_tokens: Mapping[str, str]) -> None:
        """``origin`` names the file (or key) in errors; ``special_tokens`` are variables such as bos_token.

        Raises ModelDamagedError with file and line for a template that does not compile.
        """
        self.source = source
        self.origin = origin
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateSyntaxError as error:
            raise ModelDamagedError(
                f"The chat template does not compile: {origin}, line {error.lineno}",
                found=error.message,
                remedy="restore the model's own template",
            ) from error

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt's text.

        Raises TemplateRefusal when the template itself refuses, RequestError (400) for anything else.
        """
        try:
            return self._template.render(
                **{**self._special_tokens, **template_kwargs},
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except TemplateRefusal:
            raise
        except Exception as error:  # whatever a foreign template may do wrong is this request's fault
            raise RequestError(
                "The model's chat template cannot render this conversation",
                param="messages",
                found=f"{type(error).__name__}: {error}",
            ) from error


def check_template_kwargs(template_kwargs: Mapping[str, Any]) -> None:
    """Raise RequestError (400) for arguments that would replace the conversation itself."""
    for name in template_kwargs:
        if not isinstance(name, str) or name in _RESERVED:
            raise RequestError(
                f"chat_template_kwargs cannot set {name!r}",
                param="chat_template_kwargs",
                remedy="use the request's own field for it",
            )


def render_continued(render: Callable[[list[dict[str, Any]]], str], messages: list[dict[str, Any]]) -> str:
    """Render a conversation whose last message is to be continued: cut right after its content.

    Raises RequestError (400) if the last message is not the assistant's, has no content, or is dropped by the
    template.
    """
    content = messages[-1]["content"]
    if messages[-1]["role"] != "assistant" or not content.strip():
        raise RequestError(
            "continue_final_message needs a last message of the assistant with content",
            param="continue_final_message",
            found=f"a last message of the {messages[-1]['role']}" if content.strip() else "an empty one",
        )
    marked = [*messages[:-1], {**messages[-1], "content": f"{content}{CONTINUE_MARK} "}]
    rendered = render(marked)
    at = rendered.rfind(CONTINUE_MARK)
    if at < 0 or content.strip() not in rendered:
        raise RequestError(
            "continue_final_message cannot work with this model's chat template",
            param="continue_final_message",
            found="the template changes or drops the last message",
        )
    # A template that trims its messages took the mark's space away, and would have taken the message's too.
    kept_spacing = rendered.startswith(f"{CONTINUE_MARK} ", at)
    return rendered[:at] if kept_spacing else rendered[:at].rstrip()
