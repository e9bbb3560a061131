"""How often each token occurred, kept so that a penalty is one indexed operation on a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from tandem.sampling.select import Ids, Row


class TokenCounts:
    """A growing multiset of token ids. ``ids`` and ``counts`` are views, valid until the next ``add``."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        found = Counter(tokens)
        spare = np.zeros(64)
        self._index = {token: index for index, token in enumerate(found)}
        self._ids = np.concatenate([list(found.keys()), spare]).astype(np.int64)
        self._counts = np.concatenate([list(found.values()), spare]).astype(np.float32)

    @property
    def ids(self) -> Ids:
        """Distinct tokens [N], in the order of their first occurrence."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> Row:
        """Occurrences [N] of ``ids``."""
        return self._counts[: len(self._index)]

    def add(self, token: int) -> None:
        index = self._index.get(token)
        if index is None:
            index = len(self._index)
            if index == self._ids.shape[0]:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._index[token] = index
            self._ids[index] = token
        self._counts[index] += 1.0
