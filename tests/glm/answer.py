"""What a test hears of one request, on the processor and on cards."""

from __future__ import annotations

import threading

from tandem.core.requests import Finish, FinishReason, TokenOutput


class Answer:
    """One request's sink. Reading ``tokens`` waits for its end."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._finish: Finish | None = None
        self._done = threading.Event()

    def on_token(self, output: TokenOutput) -> FinishReason | None:
        self._tokens.append(output.token_id)
        return None

    def on_finish(self, finish: Finish) -> None:
        self._finish = finish
        self._done.set()

    @property
    def finish(self) -> Finish:
        assert self._done.wait(120)
        assert self._finish is not None
        return self._finish

    @property
    def tokens(self) -> list[int]:
        assert self.finish.error is None, self.finish.error
        return self._tokens

    @property
    def cached_tokens(self) -> int:
        return self.finish.usage.cached_tokens
