"""Constraints around reasoning: a grammar that waits for its end, a budget that brings it about.

::

    OPENING ── opening tag ──> INSIDE ── closing tag, or N tokens and a forced closing tag ──> ANSWER
       └───────────── anything else ───────────────────────────────────────────────────────────^

In OPENING and ANSWER the grammar rules (if there is one); INSIDE everything may be said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from tandem.core.errors import TandemError
from tandem.core.protocols import TokenConstraint
from tandem.text.detokenize import IncrementalDecoder
from tandem.text.reasoning import ReasoningFormat
from tandem.text.scan import held_suffix
from tandem.text.tokenizer import Tokenizer

_MAX_DELAY_TOKENS = 12
"""A forced end waits this long for a character to become whole."""


class TokenSet:
    """Bit masks over one vocabulary."""

    def __init__(self, vocab_size: int) -> None:
        self.size_bytes = (vocab_size + 31) // 32 * 4
        self._all = bytearray(self.size_bytes)
        for token_id in range(vocab_size):
            self._all[token_id >> 3] |= 1 << (token_id & 7)

    def only(self, token_id: int) -> bytes:
        return self.added(bytes(self.size_bytes), [token_id])

    def without(self, token_ids: Iterable[int]) -> bytes:
        mask = bytearray(self._all)
        for token_id in token_ids:
            mask[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
        return bytes(mask)

    @staticmethod
    def added(mask: bytes, token_ids: Iterable[int]) -> bytes:
        result = bytearray(mask)
        for token_id in token_ids:
            result[token_id >> 3] |= 1 << (token_id & 7)
        return bytes(result)


class ReasoningTags:
    """One vocabulary's tokens for a reasoning format's tags. Shared by all sequences."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat,
        eos_token_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.open_text = reasoning.open_tag
        self.close_text = reasoning.close_tag
        self.open_ids = tuple(tokenizer.encode(reasoning.open_tag, special=True))
        self.close_ids = tuple(tokenizer.encode(reasoning.close_tag, special=True))
        self.eos_token_ids = frozenset(eos_token_ids)
        self.sets = TokenSet(vocab_size)
        self._masks: dict[str, bytes] = {}

    @property
    def reopening_ids(self) -> tuple[int, ...]:
        """Tags that are single tokens: the ones that can be forbidden."""
        return tuple(ids[0] for ids in (self.open_ids, self.close_ids) if len(ids) == 1)

    def reasoning_mask(self, begun: str) -> bytes:
        """For reasoning before a grammar: everything but end tokens, and but tokens that would finish a
        closing tag of which ``begun`` is written and go on with visible text, past the grammar."""
        if begun not in self._masks:
            self._masks[begun] = self.sets.without([*self.eos_token_ids, *self._overshoots(begun)])
        return self._masks[begun]

    def _overshoots(self, begun: str) -> list[int]:
        tag, last = self.close_text.encode(), self.close_text[-1].encode()
        found = []
        for token_id, data in enumerate(self.tokenizer.all_token_bytes()):
            if last in data:
                _, closed, behind = (begun.encode() + data).partition(tag)
                if closed and behind.strip():
                    found.append(token_id)
        return found


class _Phase(Enum):
    OPENING = "opening"
    INSIDE = "inside"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class ReasoningRules:
    """``budget_tokens`` None = no limit."""

    starts_inside: bool
    may_open: bool
    budget_tokens: int | None = None


class ReasoningGate:
    """A constraint for a sequence that may reason first (``core.protocols.TokenConstraint``).

    ``answer`` constrains what follows the reasoning, which then cannot end the sequence. With a budget, the
    closing tag is forced after so many reasoning tokens (plus at most 12, until a character is whole);
    afterwards the tags cannot come again where they are single tokens, and the answer cannot be empty.
    """

    def __init__(self, tags: ReasoningTags, rules: ReasoningRules, answer: TokenConstraint | None) -> None:
        self._tags = tags
        self._budget = rules.budget_tokens
        self._answer = answer
        self._phase = _Phase.ANSWER
        if rules.starts_inside:
            self._phase = _Phase.INSIDE
        elif rules.may_open:
            self._phase = _Phase.OPENING
        self._decoder = IncrementalDecoder()
        self._tail = ""
        self._used_tokens = 0
        self._forced = 0
        """Tokens of the closing tag that have been forced so far."""
        self._closed_by_force = False
        self._answer_begun = False

    def token_mask(self) -> bytes | None:
        if self._phase is _Phase.INSIDE:
            return self._reasoning_mask()
        mask = None if self._answer is None else self._answer.token_mask()
        if self._phase is _Phase.OPENING and mask is not None and len(self._tags.open_ids) == 1:
            return TokenSet.added(mask, self._tags.open_ids)
        if self._phase is _Phase.ANSWER and mask is None and self._closed_by_force:
            ended = () if self._answer_begun else tuple(self._tags.eos_token_ids)
            return self._tags.sets.without(self._tags.reopening_ids + ended)
        return mask

    def accept(self, token_id: int) -> None:
        if self._phase is _Phase.INSIDE:
            self._accept_reasoning(token_id)
        elif self._phase is _Phase.OPENING and self._opens(token_id):
            return
        else:
            self._phase = _Phase.ANSWER
            if self._answer is not None:
                self._answer.accept(token_id)
            text = self._tags.tokenizer.token_bytes(token_id)
            self._answer_begun = self._answer_begun or bool(text.strip())

    def _opens(self, token_id: int) -> bool:
        """Whether the token is (part of) an opening tag; without a grammar the tag may be spelled out."""
        if self._answer is not None:
            opened = self._tags.open_ids == (token_id,)
        else:
            self._tail += self._decoder.push(self._tags.tokenizer.token_bytes(token_id))
            visible = self._tail.lstrip()
            opened = visible.startswith(self._tags.open_text)
            if not opened and self._tags.open_text.startswith(visible):
                return True
        if opened:
            self._phase, self._used_tokens, self._tail = _Phase.INSIDE, 1, ""
        return opened

    def _reasoning_mask(self) -> bytes | None:
        if self._must_close():
            return self._tags.sets.only(self._tags.close_ids[self._forced])
        if self._answer is None:
            return None
        begun = self._tail[len(self._tail) - held_suffix(self._tail, [self._tags.close_text]) :]
        return self._tags.reasoning_mask(begun)

    def _must_close(self) -> bool:
        if self._forced:
            return True
        if self._budget is None or self._used_tokens < self._budget:
            return False
        return not self._decoder.incomplete or self._used_tokens >= self._budget + _MAX_DELAY_TOKENS

    def _accept_reasoning(self, token_id: int) -> None:
        if self._must_close():
            if token_id != self._tags.close_ids[self._forced]:
                raise TandemError(f"The reasoning budget does not allow token {token_id}")
            self._forced += 1
        self._used_tokens += 1
        data = self._tags.tokenizer.token_bytes(token_id)
        self._tail += self._decoder.push(data)
        if self._tags.close_text in self._tail or self._forced == len(self._tags.close_ids):
            self._phase = _Phase.ANSWER
            self._closed_by_force = self._forced > 0
            return
        self._tail = self._tail[-len(self._tags.close_text) :]
