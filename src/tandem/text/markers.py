"""Keeps control-token text that somebody typed from becoming control tokens.

Every string a client sends passes through ``protect`` before the template sees it: control-token text in it
is replaced by a placeholder, so the template neither splits on it nor prints it. ``reveal`` finds the
placeholders in the rendered prompt again, and ``encode`` spells them in ordinary tokens.

Placeholders are bracketed by Unicode noncharacters, which have no meaning in any text; a client that sends
them anyway finds them treated like control-token text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tandem.text.tokenizer import Tokenizer

_OPEN = "\ufdd0"
_CLOSE = "\ufdd1"
CONTINUE_MARK = "\ufdd2"
"""Marks where a message that is to be continued ends."""
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a rendered prompt; ``typed`` = control-token text out of a client's string."""

    text: str
    typed: bool


class MarkerGuard:
    """Knows the texts that mean something in one model's prompts."""

    def __init__(self, tokenizer: Tokenizer, control_texts: Collection[str]) -> None:
        """``control_texts`` are texts of added tokens, none empty."""
        self._tokenizer = tokenizer
        controls = sorted(control_texts, key=len, reverse=True)
        self._texts = [*controls, _OPEN, _CLOSE, CONTINUE_MARK]
        self._index = {text: number for number, text in enumerate(self._texts)}
        self._typed = re.compile("|".join(map(re.escape, self._texts)))
        self._controls = re.compile("(" + "|".join(map(re.escape, controls)) + ")") if controls else None

    def protect(self, value: Any, keep: Collection[str] = ()) -> Any:
        """A copy of a JSON value with the control-token text in all its strings replaced, except ``keep``."""
        if isinstance(value, str):
            return self._typed.sub(lambda match: self._placeholder(match[0], keep), value)
        if isinstance(value, dict):
            return {self.protect(key, keep): self.protect(item, keep) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item, keep) for item in value]
        return value

    def _placeholder(self, text: str, keep: Collection[str]) -> str:
        return text if text in keep else f"{_OPEN}{self._index[text]}{_CLOSE}"

    def reveal(self, rendered: str) -> list[Piece]:
        """Cut a rendered prompt at its placeholders and put the typed text back."""
        pieces = []
        for number, text in enumerate(_PLACEHOLDER.split(rendered)):
            if number % 2:
                pieces.append(Piece(self._texts[int(text)], typed=True))
            elif text:
                pieces.append(Piece(text, typed=False))
        return pieces

    def encode(self, pieces: list[Piece]) -> list[int]:
        """Token ids. Text without typed markers is encoded as the tokenizer does it on its own; a stretch
        between two control tokens that has some is encoded whole, with control tokens off."""
        ids: list[int] = []
        pending = ""
        for text, typed in self._stretches(pieces):
            if typed:
                ids += self._tokenizer.encode(pending, special=True) if pending else []
                ids += self._tokenizer.encode(text, special=False)
                pending = ""
            else:
                pending += text
        return ids + (self._tokenizer.encode(pending, special=True) if pending else [])

    def _stretches(self, pieces: list[Piece]) -> Iterator[tuple[str, bool]]:
        """Runs of text and single control tokens; the flag tells runs that contain typed markers."""
        run, typed = "", False
        for piece in pieces:
            if piece.typed or self._controls is None:
                run, typed = run + piece.text, typed or piece.typed
                continue
            for number, text in enumerate(self._controls.split(piece.text)):
                if number % 2:
                    yield run, typed
                    yield text, False
                    run, typed = "", False
                else:
                    run += text
        yield run, typed
