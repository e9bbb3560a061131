"""Strings to token ids and back, with the exact bytes of every token.

Two families of vocabularies are read: byte-level BPE (GPT-2's alphabet, where each character of a token
stands for one byte) and SentencePiece-like BPE (``▁`` for a space, ``<0xHH>`` for single bytes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tokenizers

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "\u2581"


class Tokenizer:
    """A vocabulary with its merges. Thread-safe.

    ``encode`` never adds BOS or any other token of its own.
    """

    def __init__(self, definition: str, *, bos_token_id: int | None = None, add_bos: bool = False) -> None:
        """``definition`` is the text of a tokenizer.json; ``add_bos``: raw prompts begin with BOS.

        Raises ModelDamagedError (not a tokenizer definition) or ModelUnsupportedError (other family).
        """
        try:
            self._backend = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise ModelDamagedError(
                "The tokenizer definition cannot be read", found=str(error).splitlines()[0]
            ) from error
        self._backend.no_truncation()
        self._backend.no_padding()
        fields: dict[str, Any] = json.loads(definition)
        self._plain: tokenizers.Tokenizer | None = None
        self._strips_first_space = _prepends_space(fields)
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens: dict[str, int] = {token.content: index for index, token in added.items()}
        """Text of every control or user-defined token, and its id."""
        self.special_token_ids = frozenset(index for index, token in added.items() if token.special)
        self._bytes = _token_bytes(self._backend, self.added_tokens, _is_byte_level(fields))
        marked = self._backend.encode("", add_special_tokens=True).ids
        self.automatic_bos: int | None = marked[0] if marked else None
        """The control token that the definition itself puts before every text."""
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos

    @property
    def vocab_size(self) -> int:
        """Ids are 0..vocab_size-1 (some may be unused)."""
        return len(self._bytes)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of ``text``. With ``special``, control-token text in it becomes control tokens;
        without, it is spelled out in ordinary tokens."""
        backend = self._backend if special else self._plain_backend()
        try:
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # how the library refuses lone surrogates
            ids = backend.encode(replace_surrogates(text), add_special_tokens=False).ids
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """A raw prompt: control-token text counts, BOS comes first where the model wants one."""
        ids = self.encode(text, special=True)
        if self.add_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to the text; ``b""`` for ids the vocabulary does not use."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_id(self, text: str) -> int | None:
        """The id of one token by its text as in the vocabulary."""
        index: int | None = self._backend.token_to_id(text)
        return index

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_token_ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of a whole sequence (what ``encode`` came from); bytes that are no UTF-8 become U+FFFD."""
        kept = [index for index in ids if not (skip_special and self.is_special(index))]
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        if self._strips_first_space and text.startswith(" "):
            return text[1:]
        return text

    def all_token_bytes(self) -> Sequence[bytes]:
        return self._bytes

    def _plain_backend(self) -> tokenizers.Tokenizer:
        if self._plain is None:
            fields = {**json.loads(self._backend.to_str()), "added_tokens": [], "post_processor": None}
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(fields))
        return self._plain


def replace_surrogates(text: str) -> str:
    """Lone surrogates, which JSON can carry but UTF-8 cannot, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: printable Latin-1 stands for itself, the rest follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _components(section: Any) -> list[dict[str, Any]]:
    """A normalizer, pre-tokenizer or decoder section as a flat list."""
    if not section:
        return []
    parts = section.get("pretokenizers") or section.get("decoders") or section.get("normalizers") or [section]
    return [part for part in parts if isinstance(part, dict)]


def _is_byte_level(fields: dict[str, Any]) -> bool:
    model_type = fields.get("model", {}).get("type", "BPE")
    parts = _components(fields.get("pre_tokenizer")) + _components(fields.get("decoder"))
    if any(part.get("type") == "ByteLevel" for part in parts):
        return True
    if fields.get("model", {}).get("byte_fallback") or any(
        part.get("type") in ("Metaspace", "ByteFallback") for part in parts
    ):
        return False
    raise ModelUnsupportedError(
        "Cannot tell the bytes of this tokenizer's tokens",
        found=f"a {model_type} model that is neither byte-level nor SentencePiece-like",
        remedy="use a model with a byte-level or byte-fallback BPE tokenizer",
    )


def _prepends_space(fields: dict[str, Any]) -> bool:
    if any(part.get("type") == "Prepend" for part in _components(fields.get("normalizer"))):
        return True
    return any(
        part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never"
        for part in _components(fields.get("pre_tokenizer"))
    )


def _token_bytes(backend: tokenizers.Tokenizer, added: dict[str, int], byte_level: bool) -> list[bytes]:
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    letters = str.maketrans({letter: chr(byte) for letter, byte in byte_alphabet().items()})
    for text, index in vocabulary.items():
        if text in added:
            table[index] = text.encode("utf-8", "replace")
        elif byte_level:
            try:
                table[index] = text.translate(letters).encode("latin-1")
            except UnicodeEncodeError:
                table[index] = text.encode("utf-8", "replace")
        elif match := _BYTE_TOKEN.fullmatch(text):
            table[index] = bytes([int(match[1], 16)])
        else:
            table[index] = text.replace(_METASPACE, " ").encode("utf-8", "replace")
    return table
