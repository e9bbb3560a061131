"""One sequence's tokens to the deltas of a message."""

from __future__ import annotations

from tandem.core.outputs import Delta
from tandem.core.requests import FinishReason, TokenOutput


class OutputProcessor:
    """Turns one sequence's tokens into deltas; joined, they are the message."""

    stopped: bool
    """A stop string was met: the sink returns ``FinishReason.STOP``."""
    reasoning_tokens: int
    """Tokens spent on reasoning, its tags included."""

    def push(self, output: TokenOutput) -> Delta:
        """Take one token. The delta may be empty (falsy): text can be held back."""
        raise NotImplementedError

    def finish(self, reason: FinishReason) -> Delta:
        """Flush held-back text through the same parsers. The last call."""
        raise NotImplementedError

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's word (stop, length, tool_calls) once ``finish`` was called."""
        raise NotImplementedError
