"""Compiles grammars and schemas into constraints on tokens, through llguidance."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance._lib import LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from tandem.core.errors import RequestError, TandemError
from tandem.text.tokenizer import Tokenizer
from tandem.text.tools.base import ToolFormat
from tandem.text.tools.lark import LEAD, calls_grammar, lark_json
from tandem.text.tools.schema import ToolSpec, parse_tools
from tandem.text.types import ConstraintSpec

_MAX_TEXT_CHARACTERS = 256 * 1024
_MAX_DEPTH = 64
_REHEARSED_TOKENS = 6


def _limits() -> LLParserLimits:
    """Bounds on one compilation and one step: refusal within about a second on one slow core, measured with
    nested repetitions such as ``(a{1000}){1000}``, which the library's own bounds let run for five."""
    return LLParserLimits(
        initial_lexer_fuel=200_000,
        step_lexer_fuel=50_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        verbose_errors=False,
    )


class GrammarConstraint:
    """A compiled grammar's state for one sequence (``core.protocols.TokenConstraint``).

    Once the grammar can go no further, only end tokens are allowed.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._mask: bytes | None = None

    def token_mask(self) -> bytes:
        """Bits of the allowed tokens. Raises TandemError if the grammar proved too complex on the way."""
        if self._mask is None:
            self._mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise TandemError("The grammar cannot be followed any further", found=self.error())
        return self._mask

    def accept(self, token_id: int) -> None:
        self._mask = None
        if not self._matcher.consume_token(token_id):
            raise TandemError(f"The grammar does not allow token {token_id}", found=self.error())

    def error(self) -> str:
        """The library's complaint in one line, empty if there is none."""
        text: str = self._matcher.get_error()
        return text.split("\n<non-verbose/>")[0].strip().replace("\n", " ")


class _Vocabulary:
    """The shape in which llguidance takes a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos: list[int], size: int, special: list[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos[0]
        self.bos_token_id = tokenizer.bos_token_id
        known = list(tokenizer.all_token_bytes())
        self.tokens = known + [b""] * (size - len(known))
        self.special_token_ids = special

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text)


class GrammarCompiler:
    """Compiles for one vocabulary. Thread-safe; the vocabulary is prepared at the first use."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: Collection[int],
        vocab_size: int,
        tool_format: ToolFormat | None,
        written_tags: Collection[str],
    ) -> None:
        """``written_tags``: tags that grammars spell out, even where the vocabulary calls them special.
        Masks have ``vocab_size`` bits or a few more; ids without a token are never allowed."""
        self._tokenizer = tokenizer
        self._eos = sorted(eos_token_ids)
        self._size = max(vocab_size, tokenizer.vocab_size)
        self._tool_format = tool_format
        written = {tokenizer.added_tokens.get(tag) for tag in written_tags}
        self._special = sorted((tokenizer.special_token_ids - written) | set(eos_token_ids))
        self._prepared: LLTokenizer | None = None
        self._lock = threading.Lock()

    def compile(self, spec: ConstraintSpec) -> GrammarConstraint:
        """Raises RequestError (400) if the grammar is refused; see ``ConstraintSpec.param``."""
        if not self._eos:
            raise RequestError("Constrained output needs a model with an end token", param=spec.param)
        try:
            grammar = self._source(spec)
            matcher = LLMatcher(self._vocabulary(), grammar, log_level=0, limits=_limits())
            constraint = GrammarConstraint(matcher)
            if not matcher.is_error():
                self._rehearse(GrammarConstraint(matcher.deep_copy()))
        except RequestError:
            raise
        except Exception as error:  # the library's converters raise bare Exception
            raise _refusal(spec, str(error)) from error
        if matcher.is_error():
            raise _refusal(spec, constraint.error())
        return constraint

    def _rehearse(self, constraint: GrammarConstraint) -> None:
        """Go a few tokens into the grammar: expressions are built only where they are needed, so one that is
        too complex shows there. Raises TandemError."""
        for _ in range(_REHEARSED_TOKENS):
            mask = constraint.token_mask()
            at = next((index for index, byte in enumerate(mask) if byte), None)
            if at is None:
                raise TandemError("nothing can be written")
            token_id = at * 8 + (mask[at] & -mask[at]).bit_length() - 1
            if token_id in self._eos:
                return
            constraint.accept(token_id)

    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._prepared is None:
                shape = _Vocabulary(self._tokenizer, self._eos, self._size, self._special)
                self._prepared = LLTokenizer(
                    TokenizerWrapper(shape), eos_token=self._eos, slices=LLTokenizer.json_slices()
                )
            return self._prepared

    def _source(self, spec: ConstraintSpec) -> str:
        after_reasoning = spec.starts_in_reasoning or spec.may_open_reasoning
        if spec.kind in ("json_object", "json_schema"):
            json_rule = _json_rule(spec)
            if spec.tools and self._tool_format is not None:
                return self._tool_calls(spec, lead=after_reasoning, otherwise=json_rule)
            return _lark(f"start: {LEAD if after_reasoning else ''} json\njson: {json_rule}")
        if spec.kind == "regex":
            check_size(spec.regex)
            return str(LLMatcher.grammar_from_regex(spec.regex or ""))
        if spec.kind == "grammar":
            check_size(spec.grammar)
            return _lark(any_to_lark(spec.grammar or ""))
        return self._tool_calls(spec, lead=after_reasoning)

    def _tool_calls(self, spec: ConstraintSpec, *, lead: bool, otherwise: str | None = None) -> str:
        if self._tool_format is None:
            raise ValueError("this model's chat template has no tool-call format")
        tools = _chosen(parse_tools(spec.tools), spec.tool_name)
        for tool in tools:
            check_size(dict(tool.parameters))
        single = spec.tool_name is not None or not spec.parallel_tool_calls
        grammar = calls_grammar(self._tool_format, tools, single=single, lead=lead, otherwise=otherwise)
        return _lark(grammar)


def _json_rule(spec: ConstraintSpec) -> str:
    if spec.kind == "json_object":
        return lark_json({"type": "object"})
    schema = {} if spec.json_schema is None else spec.json_schema
    check_size(schema)
    if schema is False:
        raise ValueError("the schema false allows nothing")
    return lark_json(schema)


def _lark(text: str) -> str:
    return str(LLMatcher.grammar_from_lark(text))


def _chosen(tools: tuple[ToolSpec, ...], name: str | None) -> tuple[ToolSpec, ...]:
    chosen = tuple(tool for tool in tools if name in (None, tool.name))
    if not chosen:
        raise RequestError(
            "tool_choice needs a declared tool",
            param="tool_choice",
            found="no tools" if name is None else f"no tool named {name!r}",
        )
    return chosen


def check_size(value: Any) -> None:
    """Raise ValueError for a schema or grammar too long or too deeply nested to compile in bounded time."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    length = len(value) if isinstance(value, str) else len(json.dumps(value))
    if length > _MAX_TEXT_CHARACTERS:
        raise ValueError(f"it has {length:,} characters, more than {_MAX_TEXT_CHARACTERS:,}")


def _refusal(spec: ConstraintSpec, reason: str) -> RequestError:
    subject = {
        "json_object": "JSON",
        "json_schema": "The JSON schema",
        "regex": "The regular expression",
        "grammar": "The grammar",
    }.get(spec.kind or "", "The tools' parameters")
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return RequestError(
        f"{subject} cannot be enforced",
        param=spec.param,
        found="; ".join(lines[:4])[:500] or "an unknown fault",
        remedy="leave out what is named, or ask without a constraint",
    )
