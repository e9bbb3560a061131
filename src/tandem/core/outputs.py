"""What the text room makes of a sequence's tokens and the server sends on."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.requests import TokenLogprob


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call. The first piece of an index carries ``id`` and the whole ``name``."""

    index: int
    arguments: str
    """JSON text to append."""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one choice's output. Joined over the sequence it equals the non-streamed message.

    ``logprobs`` has one entry per token consumed since the previous delta, text held back or not.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls or self.logprobs)
