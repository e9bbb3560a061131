import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.sampling.history import TokenCounts
from tandem.sampling.select import largest

quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(
    length=st.sampled_from([1, 2, 63, 500, 2049, 5000]),
    count=st.integers(1, 600),
    levels=st.integers(1, 4000),
    seed=st.integers(0, 99),
)
def test_largest_is_the_head_of_a_stable_descending_sort(length, count, levels, seed):
    values = np.random.default_rng(seed).integers(-levels, levels, length).astype(np.float32) / 7
    expected = np.argsort(-values, kind="stable")[:count]
    np.testing.assert_array_equal(largest(values, count), expected)


@pytest.mark.parametrize("length", [5, 49152])
def test_largest_orders_zeros_and_infinities(length):
    values = np.full(length, -np.inf, dtype=np.float32)
    values[:4] = [-0.0, 0.0, -0.0, np.inf]
    np.testing.assert_array_equal(largest(values, 5), [3, 0, 1, 2, 4])


@quick
@given(st.lists(st.integers(0, 300), max_size=400), st.lists(st.integers(0, 300), max_size=40))
def test_token_counts_equal_a_recount(start, added):
    counts = TokenCounts(start)
    for token in added:
        counts.add(token)
    ids, expected = np.unique([*start, *added], return_counts=True)
    order = np.argsort(counts.ids)
    np.testing.assert_array_equal(counts.ids[order], ids)
    np.testing.assert_array_equal(counts.counts[order], expected)
