"""Drives a stage (or several) by hand, as an engine would, for tests of models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.plan import GIB, Card, StagePlan
from tandem.loader.base import TensorSource
from tandem.loader.gguf import GgufSource
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.base import ModelSpec, StageModel
from tandem.models.registry import model_module, spec_from_config, spec_from_gguf

CHUNK_TOKENS = 64
PAGE_TOKENS = 32


def open_model(path: Path) -> tuple[ModelSpec, TensorSource]:
    if path.is_file():
        gguf = GgufSource.open(path)
        return spec_from_gguf(gguf.metadata), gguf
    import json

    return spec_from_config(json.loads((path / "config.json").read_text())), SafetensorsSource.open(path)


class LlamaRig:
    """A model cut into stages, with shuffled pages full of NaN for ``sequences`` sequences."""

    def __init__(
        self,
        path: Path,
        *,
        cuts: Sequence[int] = (),
        sequences: int = 1,
        max_tokens: int = 512,
        cache_dtype: str = "fp32",
    ) -> None:
        self.spec, weights = open_model(path)
        pages = -(-max_tokens // PAGE_TOKENS)
        total = sequences * pages + 3
        borders = [0, *cuts, self.spec.num_layers]
        self.stages: list[StageModel] = [
            model_module(self.spec.architecture).build_stage(
                self.spec,
                weights,
                StagePlan(
                    Card("cpu", i, GIB), first, end, has_embedding=i == 0, has_head=i == len(borders) - 2
                ),
                total_pages=total,
                page_tokens=PAGE_TOKENS,
                chunk_tokens=CHUNK_TOKENS,
                max_slots=sequences,
                cache_dtype=cache_dtype,
            )
            for i, (first, end) in enumerate(pairwise(borders))
        ]
        for stage in self.stages:
            pool = stage.cache.pool  # type: ignore[attr-defined]
            pool.fill(np.nan if pool.dtype == np.float32 else 0x7E00)
        order = np.random.default_rng(1).permutation(total)[: sequences * pages]
        self.tables = torch.from_numpy(order.reshape(sequences, pages).astype(np.int32))

    def prefill(
        self, tokens: Sequence[int], sequence: int = 0, start: int = 0, padding: int = 0
    ) -> torch.Tensor:
        """Logits of tokens[start:] (``start`` a multiple of the chunk), computed chunk by chunk."""
        rows = []
        for first in range(start, len(tokens), CHUNK_TOKENS):
            part = list(tokens[first : first + CHUNK_TOKENS])
            padded = torch.tensor(part + [padding] * (CHUNK_TOKENS - len(part)))
            layout = PrefillLayout(0, first, len(part), CHUNK_TOKENS, self.tables[sequence], padded)
            hidden = self.stages[0].embed(padded)
            for stage in self.stages:
                hidden = stage.forward_prefill(hidden, layout)
            rows.append(self.stages[-1].logits(hidden[: len(part)].contiguous()).clone())
        return torch.cat(rows)

    def step(self, runs: Sequence[tuple[int, int, Sequence[int]]]) -> torch.Tensor:
        """Logits of runs of (sequence, first position, tokens), all rows in one step."""
        tokens = [token for _, _, run in runs for token in run]
        positions = [first + i for _, first, run in runs for i in range(len(run))]
        counts = [len(run) for _, _, run in runs]
        int32 = torch.int32
        layout = RowsLayout(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions, dtype=int32),
            run_of_row=torch.repeat_interleave(torch.arange(len(runs), dtype=int32), torch.tensor(counts)),
            run_starts=torch.tensor([0, *np.cumsum(counts)], dtype=int32),
            slots=torch.tensor([sequence for sequence, _, _ in runs], dtype=int32),
            page_tables=self.tables[[sequence for sequence, _, _ in runs]],
        )
        hidden = self.stages[0].embed(layout.token_ids)
        for stage in self.stages:
            hidden = stage.forward_rows(hidden, layout)
        return self.stages[-1].logits(hidden).clone()


def random_tokens(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocab_size, count)]
