"""A rehearsal at full scale is refused before memory is taken."""

import pytest

from tandem.api.rehearsal_plan import plan_rehearsal
from tandem.core.errors import BudgetError
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS

GIB = 2**30


@pytest.mark.parametrize(("cache_format", "caches_bytes"), [("fp16", 4_980_678_656), ("q8", 3_574_931_456)])
def test_terms_and_refusal(cache_format, caches_bytes):
    """The bytes are those of the record of 2026-11-30, where 0.2 % more was measured."""
    plan = plan_rehearsal(RELEASED, RELEASED_BITS, 266_000, cache_format)
    assert plan.context_tokens == 266_240
    assert (plan.weights_bytes, plan.caches_bytes) == (121_754_132_216, caches_bytes)
    plan.check(139 * GIB)
    on_hopper = plan_rehearsal(RELEASED, RELEASED_BITS, 266_000, cache_format, (9, 0))
    assert 3.8e9 < on_hopper.working_bytes < 4.5e9  # H200: 3.8 GB above weights and caches, fp16
    assert on_hopper.working_bytes < plan.working_bytes
    with pytest.raises(BudgetError, match=r"266,240 tokens needs 12\d\..*; found: 64.00 GiB free"):
        plan.check(64 * GIB)
