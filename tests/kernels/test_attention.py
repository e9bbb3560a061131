"""Attention kernels against plain torch; rows and chunks agree bit for bit; poison in pages stays there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.kernels.attention import cpu, reference

SHAPES = {  # head size, query heads, kv heads, page tokens, window
    "small": (16, 4, 2, 16, 0),
    "demo": (64, 9, 3, 64, 0),
    "window": (32, 2, 2, 32, 50),
    "tight_window": (16, 3, 1, 16, 5),
    "odd_head": (80, 2, 1, 32, 0),
}


LAYERS, LAYER = 3, 1


class Case:
    """One sequence of L positions in shuffled pages; everything else in the pool is NaN."""

    def __init__(self, shape: str, length: int, half: bool = False) -> None:
        self.D, self.heads, self.kv_heads, self.page_tokens, self.window = SHAPES[shape]
        random = np.random.default_rng(length)
        pages = -(-length // self.page_tokens)
        self.pool = np.full(
            (pages + 3, LAYERS, self.kv_heads, 2, self.page_tokens * self.D),
            np.nan,
            np.float16 if half else np.float32,
        )
        self.bits = self.pool.view(np.int16) if half else self.pool
        self.table = random.permutation(pages + 3)[:pages].astype(np.int32)
        all_heads = self.heads + 2 * self.kv_heads
        self.projected = random.standard_normal((length, all_heads, self.D)).astype(np.float32)
        self.positions = np.arange(length, dtype=np.int32)
        self.run_of_row = np.zeros(length, np.int32)
        self.scale = np.float32(self.D**-0.5)
        cpu.append(
            self.projected,
            self.heads,
            self.positions,
            self.run_of_row,
            self.table[None],
            self.bits,
            LAYER,
        )

    def rows(self, first: int, end: int) -> np.ndarray:
        out = np.full((end - first, self.heads, self.D), np.nan, np.float32)
        part = slice(first, end)
        cpu.attend_rows(
            self.projected[part],
            self.heads,
            self.positions[part],
            self.run_of_row[part],
            self.table[None],
            self.bits,
            LAYER,
            self.window,
            self.scale,
            out,
        )
        return out

    def chunk(self, first: int, end: int) -> np.ndarray:
        out = np.full((end - first, self.heads, self.D), np.nan, np.float32)
        cpu.attend_chunk(
            self.projected[first:end],
            self.heads,
            first,
            self.table,
            self.bits,
            LAYER,
            self.window,
            self.scale,
            out,
        )
        return out

    def expected(self) -> np.ndarray:
        keys, values = reference.gather(
            torch.from_numpy(self.pool), torch.from_numpy(self.table), LAYER, len(self.positions), self.D
        )
        queries = torch.from_numpy(self.projected[:, : self.heads])
        rows = [
            reference.attend(queries[p], keys, values, p, self.window) for p in range(len(self.positions))
        ]
        return torch.stack(rows).numpy()


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "fp16"])
@pytest.mark.parametrize("length", [1, 63, 500])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_reference(shape: str, length: int, half: bool) -> None:
    case = Case(shape, length, half)
    rows = case.rows(0, length)
    assert np.abs(rows - case.expected()).max() < 2e-6
    assert np.array_equal(case.chunk(0, length), rows)


@pytest.mark.parametrize("shape", ["demo", "window", "tight_window"])
def test_any_cut_gives_the_same_bits(shape: str) -> None:
    case = Case(shape, 200)
    expected = case.rows(0, 200)
    for first, end in ((0, 1), (3, 4), (17, 200), (64, 191), (100, 107)):
        assert np.array_equal(case.chunk(first, end), expected[first:end])
        assert np.array_equal(case.rows(first, end), expected[first:end])


def test_append_matches_reference() -> None:
    for half in (False, True):
        case = Case("demo", 100, half)
        kind = torch.float16 if half else torch.float32
        pool = torch.full(case.pool.shape, float("nan"), dtype=kind)
        keys = torch.from_numpy(case.projected[:, 9:12])
        values = torch.from_numpy(case.projected[:, 12:])
        positions, table = torch.from_numpy(case.positions), torch.from_numpy(case.table)
        reference.append(pool, keys, values, positions, table, LAYER)
        assert np.array_equal(pool.numpy(), case.pool, equal_nan=True)


def test_rows_of_several_sequences() -> None:
    """Two sequences in one pool: each row reads its own run's table."""
    case = Case("small", 40)
    other = Case("small", 23)
    pool = np.concatenate([case.pool, other.pool])
    tables = np.zeros((2, len(case.table)), np.int32)
    tables[0] = case.table
    tables[1, : len(other.table)] = other.table + len(case.pool)
    out = np.full((2, case.heads, case.D), np.nan, np.float32)
    cpu.attend_rows(
        np.stack([other.projected[22], case.projected[39]]),
        case.heads,
        np.array([22, 39], np.int32),
        np.array([1, 0], np.int32),
        tables,
        pool,
        LAYER,
        0,
        case.scale,
        out,
    )
    assert np.array_equal(out[0], other.rows(22, 23)[0])
    assert np.array_equal(out[1], case.rows(39, 40)[0])
