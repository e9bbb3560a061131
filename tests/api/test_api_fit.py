"""The catalogue's own recipes, judged on cards by the planner."""

from dataclasses import replace

import pytest

from tandem.api.fit import PlannerFit, model_geometry
from tandem.planner.geometry import GLM_5_3_FLASH
from tandem.recipes.files import load_catalogue
from tandem.recipes.fit import fit_subject, parse_hardware
from tandem.recipes.profiles import named_profile

MAIN = "glm53-flash-2x64-layer-split"
LOADED = load_catalogue(None)


def judge(recipe_id, profile, hardware, **changes):
    recipe = LOADED.recipes[recipe_id].recipe
    geometry = LOADED.models[recipe.model].geometry
    subject = replace(fit_subject(recipe, named_profile(recipe, profile)), **changes)
    return PlannerFit().fit(subject, geometry, parse_hardware(hardware))


def test_the_register_and_the_planner_mean_the_same_model():
    assert model_geometry(LOADED.models["glm-5.3-flash"].geometry) == GLM_5_3_FLASH


@pytest.mark.parametrize("profile", ["q8_384k", "q8_320k", "q8_fast", "fp16"])
def test_the_profiles_of_the_source_recipe_load_on_its_cards(profile):
    report = judge(MAIN, profile, "2x64GiB")
    assert report.verdict in {"fits", "marginal"}
    assert len(report.cards) == 2
    assert report.cards[0].layers[0] == 0
    assert report.cards[1].layers[1] == 45


@pytest.mark.parametrize("tokens", [458_752, 524_288])
def test_448k_and_512k_do_not(tokens):
    report = judge(MAIN, "q8_384k", "2x64GiB", cache_tokens=tokens)
    assert report.verdict in {"no", "marginal"}
    assert "layer 44 of 45" in report.reason


def test_our_profile_reaches_a_million_tokens_on_the_same_cards():
    report = judge(MAIN, "q8_1m", "2x64GiB")
    assert report.verdict == "fits"
    assert report.max_context_tokens == 1_048_576


def test_smaller_cards_are_refused():
    assert judge(MAIN, "q8_384k", "2x48GiB").verdict == "no"


def test_what_cannot_be_sized_is_unknown_with_a_reason():
    report = judge("glm53-flash-4x64", None, "4x64GiB")
    assert report.verdict == "unknown"
    assert report.reason
