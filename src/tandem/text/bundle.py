"""The text side of one model, built once: tokenizer, chat template, output formats, grammars."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.core.errors import RequestError
from tandem.core.protocols import TokenConstraint
from tandem.core.requests import SamplingDefaults
from tandem.text.constraint import ReasoningGate, ReasoningRules, ReasoningTags
from tandem.text.effort import resolve_template_kwargs
from tandem.text.files import ModelText, read_folder, read_gguf
from tandem.text.formats import reasoning_format, tool_format
from tandem.text.grammar import GrammarCompiler
from tandem.text.markers import MarkerGuard, Piece
from tandem.text.messages import alternate_roles, normalize_messages
from tandem.text.output import OutputProcessor, OutputRules
from tandem.text.parser import MessageParser
from tandem.text.template import ChatTemplate, TemplateRefusal, check_template_kwargs, render_continued
from tandem.text.tokenizer import Tokenizer
from tandem.text.tools.prompt import write_tools
from tandem.text.tools.schema import parse_tools
from tandem.text.types import ChatPrompt, ConstraintKind, ConstraintSpec, OutputOptions

__all__ = ["ChatPrompt", "ConstraintKind", "ConstraintSpec", "OutputOptions", "OutputProcessor", "TextBundle"]


class TextBundle:
    """Everything between strings and token ids for one model. Thread-safe."""

    def __init__(self, parts: ModelText, *, reasoning: str | None = None, tools: str | None = None) -> None:
        """``reasoning`` and ``tools`` name formats; None = detect from the template, "none" = off."""
        self.sampling: SamplingDefaults = parts.sampling
        self.tokenizer: Tokenizer = parts.tokenizer
        self.eos_token_ids: frozenset[int] = parts.eos_token_ids
        """All of the model's end tokens: a sequence ends with any of them."""
        self.vocab_size: int = parts.vocab_size
        """Rows of the model's output head where known (padding ids included), else the tokenizer's ids."""
        self.template: ChatTemplate | None = None
        self.chat_unavailable: str | None = None
        """Why ``template`` is None: one line that names the missing file."""
        source = "" if parts.template is None else parts.template.text
        if parts.template is None:
            self.chat_unavailable = parts.template_missing
        else:
            self.template = ChatTemplate(
                source, origin=parts.template.origin, special_tokens=parts.special_tokens
            )
        self._reasoning = reasoning_format(reasoning, source)
        self._tools = tool_format(tools, source)
        self._reasoning_tags = (
            None
            if self._reasoning is None
            else ReasoningTags(self.tokenizer, self._reasoning, self.eos_token_ids, self.vocab_size)
        )
        tags = self._reasoning_texts + (self._tools.tags if self._tools else ())
        self._guard = MarkerGuard(self.tokenizer, _control_texts(self.tokenizer, source, tags))
        ids = (self.tokenizer.added_tokens.get(tag) for tag in tags)
        self._tag_ids = frozenset(index for index in ids if index is not None)
        self._compiler = GrammarCompiler(
            self.tokenizer,
            eos_token_ids=self.eos_token_ids,
            vocab_size=self.vocab_size,
            tool_format=self._tools,
            written_tags=tags,
        )

    @classmethod
    def from_folder(
        cls, path: Path, *, reasoning_format: str | None = None, tool_format: str | None = None
    ) -> TextBundle:
        """Read a Hugging Face folder.

        Formats are detected from the chat template unless named ("none" switches one off).
        Raises ModelNotFoundError (folder or tokenizer.json missing), ModelDamagedError (unreadable file,
        template syntax error with file and line), ModelUnsupportedError (an unknown tokenizer or format).
        """
        return cls(read_folder(path), reasoning=reasoning_format, tools=tool_format)

    @classmethod
    def from_gguf(
        cls,
        path: Path,
        *,
        sampling: SamplingDefaults | None = None,
        reasoning_format: str | None = None,
        tool_format: str | None = None,
    ) -> TextBundle:
        """Read a GGUF file's metadata, which has no place for sampling. Raises as ``from_folder``."""
        parts = read_gguf(path)
        if sampling is not None:
            parts = replace(parts, sampling=sampling)
        return cls(parts, reasoning=reasoning_format, tools=tool_format)

    @property
    def reasoning_format(self) -> str | None:
        return None if self._reasoning is None else self._reasoning.name

    @property
    def tool_format(self) -> str | None:
        return None if self._tools is None else self._tools.name

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Tokens of a completion prompt, with BOS where the model wants it. Control-token text counts as
        control tokens, as everywhere for raw prompts. Empty for an empty text and a model without BOS."""
        return tuple(self.tokenizer.encode_prompt(text))

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render and encode a conversation given in OpenAI's shapes.

        ``template_kwargs`` is ``chat_template_kwargs`` with a top-level ``reasoning_effort`` merged in.
        Control-token text inside message strings never becomes control tokens. Tools for a template that
        knows none are declared in the system message.
        Raises RequestError (400) for messages or tools of a wrong shape, an unknown role, an image part, an
        unknown effort, a template that refuses the conversation, or a model without a template.
        """
        if self.template is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions", found=self.chat_unavailable
            )
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
                remedy="set add_generation_prompt to false",
            )
        parse_tools(tools)
        check_template_kwargs(template_kwargs or {})
        kwargs, notes = resolve_template_kwargs(self.template.variables, template_kwargs or {})
        normal = [self._protect(message) for message in normalize_messages(messages)]
        declared = self._guard.protect(tools) if tools else None
        if self._tools is not None and "tools" not in self.template.variables:
            normal, declared = write_tools(normal, declared, self._tools), None
        rendered = self._render(
            normal,
            tools=declared,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=self._guard.protect(kwargs),
        )
        pieces = self._guard.reveal(rendered)
        inside, may_open = self._reasoning_state(pieces, continued=continue_final_message)
        return ChatPrompt(
            tokens=tuple(self._guard.encode(pieces)),
            text="".join(piece.text for piece in pieces),
            starts_in_reasoning=inside,
            may_open_reasoning=may_open,
            notes=notes,
        )

    def output_processor(self, options: OutputOptions) -> OutputProcessor:
        """A fresh processor for one sequence. Raises RequestError (400) for tools of a wrong shape."""
        tools = {tool.name: tool for tool in parse_tools(options.tools)}
        expects_calls = options.chat and bool(tools) and self._tools is not None
        parser = None
        if options.chat and (self._reasoning or expects_calls):
            parser = MessageParser(
                reasoning=self._reasoning,
                starts_in_reasoning=options.starts_in_reasoning,
                tool_format=self._tools,
                tools=tools,
            )
        rules = OutputRules(
            stops=options.stops,
            visible_special_ids=self._tag_ids if parser else frozenset(),
            skip_special_tokens=options.skip_special_tokens,
            expects_calls=expects_calls,
            parallel_tool_calls=options.parallel_tool_calls,
            drop_tool_calls=options.drop_tool_calls,
            short_call_ids=self._tools is not None and self._tools.short_ids,
        )
        return OutputProcessor(self.tokenizer, parser, rules)

    def constraint(self, spec: ConstraintSpec) -> TokenConstraint:
        """A fresh constraint for one sequence; a grammar takes hold after reasoning ends.

        Raises RequestError (400, ``spec.param``) if it cannot be compiled or satisfied, before anything is
        generated, or if a reasoning budget is asked of a model that does not reason. Every sequence of a
        request (``n``) needs its own.
        """
        answer = None if spec.kind is None else self._compiler.compile(spec)
        if self._reasoning_tags is None:
            if answer is None or spec.reasoning_budget_tokens is not None:
                raise RequestError("This model has no reasoning to limit", param=spec.param)
            return answer
        rules = ReasoningRules(
            starts_inside=spec.starts_in_reasoning,
            may_open=spec.may_open_reasoning,
            budget_tokens=spec.reasoning_budget_tokens,
        )
        return ReasoningGate(self._reasoning_tags, rules, answer)

    @property
    def _reasoning_texts(self) -> tuple[str, ...]:
        return () if self._reasoning is None else (self._reasoning.open_tag, self._reasoning.close_tag)

    def _protect(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message without control-token text, but for the tags of a reasoning block that an assistant's
        content begins with: clients send back what they were given, and templates know how to cut it off."""
        protected: dict[str, Any] = self._guard.protect(message)
        if self._reasoning is None or message["role"] != "assistant":
            return protected
        head, close, answer = message["content"].partition(self._reasoning.close_tag)
        if close and head.lstrip().startswith(self._reasoning.open_tag):
            block = self._guard.protect(head + close, keep=self._reasoning_texts)
            protected["content"] = block + self._guard.protect(answer)
        return protected

    def _render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: dict[str, Any],
    ) -> str:
        """Render as given; if the template refuses, once more with the roles taking turns."""
        template = self.template
        assert template is not None

        def render(conversation: list[dict[str, Any]]) -> str:
            return template.render(
                conversation, tools=tools, add_generation_prompt=add_generation_prompt, template_kwargs=kwargs
            )

        refusal: TemplateRefusal | None = None
        attempts = (
            messages,
            alternate_roles(messages, fold_system=False),
            alternate_roles(messages, fold_system=True),
        )
        for attempt in attempts:
            try:
                return render_continued(render, attempt) if continue_final_message else render(attempt)
            except TemplateRefusal as error:
                refusal = refusal or error
        raise RequestError(
            f"The model's chat template refuses this conversation: {refusal}", param="messages"
        ) from refusal

    def _reasoning_state(self, pieces: list[Piece], *, continued: bool) -> tuple[bool, bool]:
        """Whether the prompt ends inside reasoning, and else whether the output may open a block."""
        if self._reasoning is None:
            return False, False
        text = "".join("\0" if piece.typed else piece.text for piece in pieces).rstrip()
        if continued:
            opened = text.rfind(self._reasoning.open_tag) > text.rfind(self._reasoning.close_tag)
            return opened, False
        if text.endswith(self._reasoning.open_tag):
            return True, False
        return False, not text.endswith(self._reasoning.close_tag)


def _control_texts(tokenizer: Tokenizer, template: str, tags: Collection[str]) -> frozenset[str]:
    """Added tokens that mean something in a prompt: control tokens, and others that the template or an
    output format writes. (The rest are mere vocabulary, such as runs of spaces or HTML tags.)"""
    return frozenset(
        text
        for text, index in tokenizer.added_tokens.items()
        if text.strip() and (tokenizer.is_special(index) or text in tags or text in template)
    )
