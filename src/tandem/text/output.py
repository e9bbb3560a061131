"""One sequence's tokens to the deltas of a message."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from tandem.core.outputs import Delta, ToolCallDelta
from tandem.core.requests import FinishReason, TokenLogprob, TokenOutput
from tandem.text.detokenize import IncrementalDecoder
from tandem.text.parser import CallEvent, Event, MessageParser
from tandem.text.stops import StopMatcher
from tandem.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Draft:
    """A delta in the making."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OutputRules:
    """What an ``OutputProcessor`` needs to know beyond its tokenizer and parser."""

    stops: tuple[str, ...] = ()
    visible_special_ids: frozenset[int] = frozenset()
    """Control tokens whose text is read all the same (tags of the formats in use)."""
    skip_special_tokens: bool = True
    expects_calls: bool = False
    """Calls may come: whitespace beside them is not content."""
    parallel_tool_calls: bool = True
    drop_tool_calls: bool = False
    short_call_ids: bool = False


class OutputProcessor:
    """Turns one sequence's tokens into deltas; joined, they are the message.

    Bytes become text, text is split into reasoning, content and calls, and stop strings then act on the
    content alone. Not thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer, parser: MessageParser | None, rules: OutputRules) -> None:
        """``parser`` None: all text is content."""
        self._tokenizer = tokenizer
        self._parser = parser
        self._rules = rules
        self._decoder = IncrementalDecoder()
        self._stops = StopMatcher(rules.stops)
        self._space = ""
        """Whitespace at the end of the content so far: shown only if more content follows."""
        self._calls_seen = 0
        self._calls_delivered = 0
        self.reasoning_tokens = 0
        """Tokens spent on reasoning, its tags included."""

    @property
    def stopped(self) -> bool:
        """A stop string was met: the sink returns ``FinishReason.STOP``. Nothing follows."""
        return self._stops.stopped

    def push(self, output: TokenOutput) -> Delta:
        """Take one token. The delta may be empty (falsy): text can be held back."""
        if self.stopped or output.is_stop_token:
            return Delta()
        logprobs = () if output.logprob is None else (output.logprob,)
        was_reasoning = self._in_reasoning
        draft = _Draft()
        if self._is_visible(output.token_id):
            text = self._decoder.push(self._tokenizer.token_bytes(output.token_id))
            self._deliver_text(text, draft)
        if was_reasoning or self._in_reasoning:
            self.reasoning_tokens += 1
        return self._delta(draft, logprobs)

    def finish(self, reason: FinishReason) -> Delta:
        """Flush held-back text through the same parsers. The last call."""
        draft = _Draft()
        if not self.stopped and self._parser is not None:
            self._deliver(self._parser.finish(by_model=reason is FinishReason.STOP), draft)
        if not self.stopped:
            self._add_content(self._stops.flush(), draft)
        if self._calls_seen == 0:
            draft.content.append(self._space)
        return self._delta(draft)

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's word (stop, length, tool_calls) once ``finish`` was called."""
        if reason is FinishReason.STOP and self._calls_delivered:
            return "tool_calls"
        return reason.value

    @property
    def _in_reasoning(self) -> bool:
        return self._parser is not None and self._parser.in_reasoning

    def _is_visible(self, token_id: int) -> bool:
        rules = self._rules
        return (
            not rules.skip_special_tokens
            or token_id in rules.visible_special_ids
            or not self._tokenizer.is_special(token_id)
        )

    def _deliver_text(self, text: str, draft: _Draft) -> None:
        if not text:
            return
        if self._parser is None:
            self._add_content(self._stops.push(text), draft)
        else:
            self._deliver(self._parser.feed(text), draft)

    def _deliver(self, events: list[Event], draft: _Draft) -> None:
        for event in events:
            if self.stopped:
                return
            if isinstance(event, CallEvent):
                self._add_call(event, draft)
            elif event.channel == "reasoning":
                draft.reasoning.append(event.text)
            else:
                self._add_content(self._stops.push(event.text), draft)

    def _add_content(self, text: str, draft: _Draft) -> None:
        if not self._rules.expects_calls:
            draft.content.append(text)
            return
        text = self._space + text
        visible = text.rstrip()
        self._space = text[len(visible) :]
        draft.content.append(visible)

    def _add_call(self, event: CallEvent, draft: _Draft) -> None:
        if event.name is not None:
            self._add_content(self._stops.flush(), draft)
            self._space = ""
            self._calls_seen += 1
        if self._rules.drop_tool_calls or (self._calls_seen > 1 and not self._rules.parallel_tool_calls):
            return
        if event.name is not None:
            self._calls_delivered += 1
            draft.calls.append(
                ToolCallDelta(
                    index=self._calls_seen - 1,
                    arguments=event.arguments,
                    id=secrets.token_hex(5)[:9]
                    if self._rules.short_call_ids
                    else f"call_{secrets.token_hex(12)}",
                    name=event.name,
                )
            )
        elif event.arguments:
            draft.calls.append(ToolCallDelta(index=self._calls_seen - 1, arguments=event.arguments))

    def _delta(self, draft: _Draft, logprobs: tuple[TokenLogprob, ...] = ()) -> Delta:
        return Delta("".join(draft.content), "".join(draft.reasoning), tuple(draft.calls), logprobs)


def _new_id(short: bool) -> str:
    return secrets.token_hex(5)[:9] if short else f"call_{secrets.token_hex(12)}"
