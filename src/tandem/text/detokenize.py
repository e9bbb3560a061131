"""Bytes of tokens to text, one token at a time."""

from __future__ import annotations

import codecs


class IncrementalDecoder:
    """UTF-8 over pieces that may cut characters anywhere.

    Only an incomplete suffix is held back; bytes that can never become a character turn into U+FFFD at once,
    and a U+FFFD that the model wrote passes like any other character. What is still incomplete at the end of
    a sequence is dropped by not asking for it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        return self._decoder.decode(data)

    @property
    def incomplete(self) -> bool:
        """The bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])
