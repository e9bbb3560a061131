import pytest
from engine_rig import Rig, expected, prompt

from tandem.core.errors import EngineFault
from tandem.engine.warmup import warm_up


@pytest.mark.parametrize("stages", [1, 2])
def test_every_number_of_rows_is_computed_once_and_nothing_is_left_behind(stages):
    with Rig(stages) as rig:
        warm_up(rig.engine)
        for model in rig.models:
            computed = [event for event in model.events if event.startswith(("prefill", "rows"))]
            assert computed == ["prefill 0+1", "rows 1", "rows 2", "rows 4", "rows 8", "rows 16"]
        sequence = rig.driver.open(prompt(20))
        assert rig.driver.generate(sequence, 4) == expected(prompt(20), 4)


def test_a_small_engine_is_warmed_as_far_as_it_goes():
    with Rig(total_pages=4, context_tokens=12) as rig:
        warm_up(rig.engine)
        assert rig.models[0].events[-2] == "rows 4"


def test_a_model_without_numbers_is_found_out():
    with Rig(2) as rig:
        rig.models[1].poisoned = expected([0], 1)[0]
        with pytest.raises(EngineFault, match="cannot be sampled: The model's logits are not finite"):
            warm_up(rig.engine)
