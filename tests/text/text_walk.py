"""Random walks under a constraint: whatever tokens are drawn, the text must come out right."""

from __future__ import annotations

import random

from tandem.core.protocols import TokenConstraint
from tandem.text.bundle import TextBundle


def allowed_ids(mask: bytes | None, vocab_size: int) -> list[int]:
    if mask is None:
        return list(range(vocab_size))
    return [index for index in range(len(mask) * 8) if mask[index >> 3] >> (index & 7) & 1]


def walk(
    bundle: TextBundle,
    constraint: TokenConstraint,
    seed: int,
    *,
    free_steps: int = 25,
    max_steps: int = 3000,
    closing_text: str = "",
) -> list[int]:
    """Tokens up to (without) an end token. Draws uniformly among the allowed tokens, and after ``free_steps``
    prefers the end, then the next letter of ``closing_text``, then tokens that close something."""
    source = random.Random(seed)
    closing = [
        bundle.tokenizer.token_id(text) for text in ('"', "}", "]", "</arg_value>", "</tool_call>", ",")
    ]
    tokens: list[int] = []
    for step in range(max_steps):
        choices = allowed_ids(constraint.token_mask(), bundle.vocab_size)
        assert choices, "nothing is allowed"
        ends = [index for index in choices if index in bundle.eos_token_ids]
        wanted = ends or _next_letter(bundle, tokens, closing_text, choices)
        wanted = wanted or [index for index in closing if index in set(choices)]
        token = source.choice(wanted if wanted and step >= free_steps else choices)
        constraint.accept(token)
        if token in bundle.eos_token_ids:
            return tokens
        tokens.append(token)
    raise AssertionError("the walk did not end")


def _next_letter(bundle: TextBundle, tokens: list[int], closing_text: str, choices: list[int]) -> list[int]:
    """The token that goes on with ``closing_text``, as far as it is written."""
    if not closing_text:
        return []
    text = bundle.tokenizer.decode(tokens[-len(closing_text) :])
    written = next(n for n in range(len(closing_text) - 1, -1, -1) if text.endswith(closing_text[:n]))
    letter = closing_text[written].encode()
    return [index for index in choices if bundle.tokenizer.token_bytes(index) == letter]
