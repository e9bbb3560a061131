"""Drives stages directly, without engine or scheduler, and shows all logits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.plan import Card, StagePlan
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.glm5_next.model import build_stage
from tandem.models.glm5_next.spec import Glm5NextSpec, from_config
from tandem.models.glm5_next.stage import Glm5NextStage

PAGE_TOKENS = 16


def read_spec(folder: Path) -> Glm5NextSpec:
    return from_config(json.loads((folder / "config.json").read_text()))


def build_stages(
    folder: Path,
    cuts: Sequence[int] = (),
    *,
    chunk_tokens: int = 64,
    total_pages: int = 96,
    max_slots: int = 8,
    cache: str = "fp32",
) -> list[Glm5NextStage]:
    """The model of a folder, cut before the given layers."""
    spec, source = read_spec(folder), SafetensorsSource.open(folder)
    bounds = [0, *cuts, spec.num_layers]
    return [
        build_stage(
            spec,
            source,
            StagePlan(Card("cpu", i, 1 << 40), first, end, first == 0, end == spec.num_layers),
            total_pages=total_pages,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=chunk_tokens,
            max_slots=max_slots,
            cache_dtype=cache,
        )
        for i, (first, end) in enumerate(pairwise(bounds))
    ]


class Rig:
    """Stages in a row, and the pages of every slot in an order of their own."""

    def __init__(self, stages: list[Glm5NextStage], *, chunk_tokens: int = 64, total_pages: int = 96) -> None:
        self.stages = stages
        self.chunk_tokens = chunk_tokens
        self._free = torch.randperm(total_pages, generator=torch.Generator().manual_seed(5)).tolist()
        self._tables: dict[int, list[int]] = {}

    def open(self, slot: int, tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """Give a slot the pages for so many tokens, the first of them shared; its state is reset."""
        for stage in self.stages:
            stage.reset_slot(slot)
        needed = -(-tokens // PAGE_TOKENS)
        self._tables[slot] = [*shared, *(self._free.pop() for _ in range(needed - len(shared)))]
        return self._tables[slot]

    def close(self, slot: int) -> None:
        self._free += self._tables.pop(slot)

    def prefill(self, slot: int, tokens: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Logits [T, V] of the prompt's positions from ``start``, chunk by chunk on the absolute grid."""
        parts = []
        for first in range(start, len(tokens), self.chunk_tokens):
            chunk = tokens[first : first + self.chunk_tokens]
            padded = torch.nn.functional.pad(chunk, (0, self.chunk_tokens - len(chunk)))
            table = torch.tensor(self._tables[slot], dtype=torch.int32)
            layout = PrefillLayout(slot, first, len(chunk), self.chunk_tokens, table, padded)
            hidden = self.stages[0].embed(padded)
            for stage in self.stages:
                hidden = stage.forward_prefill(hidden, layout)
            parts.append(self.stages[-1].logits(hidden[: len(chunk)].contiguous()))
        return torch.cat(parts)

    def rows(self, runs: Sequence[tuple[int, int, torch.Tensor]]) -> list[torch.Tensor]:
        """One step of several sequences, (slot, start, tokens) each; logits a run."""
        lengths = [len(tokens) for _, _, tokens in runs]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        pages = max(len(self._tables[slot]) for slot, _, _ in runs)
        tables = [self._tables[slot] + [0] * (pages - len(self._tables[slot])) for slot, _, _ in runs]
        token_ids = torch.cat([tokens for _, _, tokens in runs])
        positions = torch.cat([torch.arange(start, start + len(tokens)) for _, start, tokens in runs])
        layout = RowsLayout(
            token_ids=token_ids,
            positions=positions.int(),
            run_of_row=torch.arange(len(runs)).repeat_interleave(torch.tensor(lengths)).int(),
            run_starts=ends.int(),
            slots=torch.tensor([slot for slot, _, _ in runs], dtype=torch.int32),
            page_tables=torch.tensor(tables, dtype=torch.int32),
        )
        hidden = self.stages[0].embed(token_ids)
        for stage in self.stages:
            hidden = stage.forward_rows(hidden, layout)
        return list(torch.split(self.stages[-1].logits(hidden), lengths))

    def steps(self, slot: int, tokens: torch.Tensor, start: int, rows: int = 1) -> torch.Tensor:
        """Logits of ``tokens[start:]``, so many at a time."""
        parts = [self.rows([(slot, i, tokens[i : i + rows])])[0] for i in range(start, len(tokens), rows)]
        return torch.cat(parts) if parts else torch.empty(0, 0)
