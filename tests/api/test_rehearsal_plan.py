"""A rehearsal at full scale is refused before memory is taken."""

import pytest

from tandem.api.rehearsal_plan import plan_rehearsal
from tandem.core.errors import BudgetError
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS

GIB = 2**30


@pytest.mark.parametrize(
    ("context_tokens", "cache_format", "weights_bytes", "caches_bytes"),
    [
        (266_240, "fp16", 121_707_969_612, 5_208_110_592),
        (1_048_832, "q8", 121_707_969_612, 9_034_987_008),
    ],
)
def test_every_term_is_what_was_measured(context_tokens, cache_format, weights_bytes, caches_bytes):
    """Allocated on an H200, 2026-11-30 (`benchmarks/results`)."""
    plan = plan_rehearsal(RELEASED, RELEASED_BITS, context_tokens, cache_format)
    assert plan.weights_bytes == pytest.approx(weights_bytes, rel=1e-3)
    assert plan.caches_bytes == pytest.approx(caches_bytes, rel=1e-4)


@pytest.mark.parametrize("cache_format", ["fp16", "q8"])
def test_terms_and_refusal(cache_format):
    plan = plan_rehearsal(RELEASED, RELEASED_BITS, 266_000, cache_format)
    assert plan.context_tokens == 266_240
    plan.check(139 * GIB)
    on_hopper = plan_rehearsal(RELEASED, RELEASED_BITS, 266_000, cache_format, (9, 0))
    assert 3.8e9 < on_hopper.working_bytes < 4.5e9  # H200: 3.8 GB above weights and caches, fp16
    assert on_hopper.working_bytes < plan.working_bytes
    with pytest.raises(BudgetError, match=r"266,240 tokens needs 12\d\..*; found: 64.00 GiB free"):
        plan.check(64 * GIB)
