"""``--recipe`` and ``--profile`` become settings, every value with its source."""

import pytest

from tandem.cli.flags import load_options
from tandem.cli.from_recipe import DEFAULT_RECIPE, recipe_settings
from tandem.core.errors import ModelNotFoundError, SettingsError
from tandem.core.settings import read_environment


def resolved(profile, recipe=None, **flags):
    settings = recipe_settings(recipe, profile, flags, read_environment())
    return settings, load_options({}, settings.load)


def test_a_profile_alone_means_the_main_recipe_and_is_complete():
    settings, load = resolved("q8_384k")
    assert settings.lines[0] == f"recipe {DEFAULT_RECIPE}, profile q8_384k"
    assert load.options.model == "turboderp/GLM-5.3-Flash-exl3@332ab457"
    assert load.options.context_tokens == 392_960
    assert load.options.pool_tokens == 393_216
    assert load.options.cache_format == "q8"
    assert [card.name for card in load.options.cards] == ["cuda:0", "cuda:1"]
    assert load.sources["context_tokens"] == "profile q8_384k"
    assert load.sources["model"] == f"recipe {DEFAULT_RECIPE}"
    assert load.sources["threads"] == "default"


def test_flags_win_and_say_so():
    settings, _ = resolved("q8_384k", context_tokens="64k", port=9000)
    text = "\n".join(settings.lines)
    assert "context_tokens = 65536  (--context-tokens)" in text
    assert "9000  (--port)" in text


def test_a_drafter_is_not_dropped_in_silence():
    settings, _ = resolved("q8_384k")
    assert "dflash2" in settings.notices[0]


@pytest.mark.parametrize("profile", ["q8_384k", "q8_320k", "q8_fast", "fp16", "mtp", "q8_1m"])
def test_every_profile_resolves(profile):
    settings, load = resolved(profile)
    load.options.check()
    assert all("  (" in line for line in settings.lines[1:])


def test_unknown_names_list_those_there_are():
    with pytest.raises(ModelNotFoundError, match=DEFAULT_RECIPE):
        resolved(None, recipe="nope")
    with pytest.raises(SettingsError, match="q8_1m"):
        resolved("nope")
