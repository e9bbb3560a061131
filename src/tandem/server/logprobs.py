"""Log probabilities in the two shapes of the API: chat's list of objects and completions' parallel lists."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from tandem.core.requests import TokenLogprob
from tandem.text.tokenizer import Tokenizer

_FLOOR = -9999.0
"""JSON has no minus infinity; OpenAI writes this number for it."""


def chat_logprobs(entries: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """One entry a token, in order. ``bytes`` of all entries joined are the text, cut characters too."""
    return {
        "content": [
            {
                **_chat_entry(entry.token_id, entry.logprob, tokenizer),
                "top_logprobs": [_chat_entry(token, logprob, tokenizer) for token, logprob in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_entry(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": max(logprob, _FLOOR),
        "bytes": list(raw),
    }


class CompletionLogprobs:
    """Completions' shape for one choice; ``text_offset`` runs on over the chunks of a stream."""

    def __init__(self, tokenizer: Tokenizer, echoed_characters: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = echoed_characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Four lists of equal length. A token that is a part of a character is written ``bytes:\\xe2…``."""
        tokens: list[str] = []
        offsets: list[int] = []
        logprobs: list[float] = []
        tops: list[dict[str, float]] = []
        for entry in entries:
            raw = self._tokenizer.token_bytes(entry.token_id)
            tokens.append(_name(raw))
            offsets.append(self._offset)
            logprobs.append(max(entry.logprob, _FLOOR))
            top = {_name(self._tokenizer.token_bytes(token)): max(lp, _FLOOR) for token, lp in entry.top}
            top.setdefault(_name(raw), max(entry.logprob, _FLOOR))
            tops.append(top)
            self._offset += len(self._decoder.decode(raw))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _name(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
