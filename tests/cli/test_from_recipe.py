"""``--recipe`` and ``--profile`` become settings, every value with its source."""

import pytest

from tandem.cli.flags import load_options
from tandem.cli.from_recipe import DEFAULT_RECIPE, DEMO_RECIPE, recipe_settings
from tandem.core.errors import ModelNotFoundError, SettingsError, UserError
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


def layered(tmp_path, text, variables=None, profile="q8_384k", **flags):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return recipe_settings(None, profile, flags, read_environment(), file=path, variables=variables)


def shown(settings, key):
    return next(line.partition("=")[2].strip() for line in settings.lines if line.startswith(key))


def test_file_over_profile_environment_over_file_flag_over_all(tmp_path):
    text = "context_tokens: 64k\ncache_format: fp16\nmax_running: 2\nport: 8001\n"
    variables = {"TANDEM_SERVE_CACHE_FORMAT": "q8", "TANDEM_SERVE_PORT": "8002"}
    settings = layered(tmp_path, text, variables, port=8003)
    assert shown(settings, "context_tokens") == f"65536  ({tmp_path / 'mine.yaml'})"
    assert shown(settings, "cache_format") == "q8  (TANDEM_SERVE_CACHE_FORMAT)"
    assert shown(settings, "port") == "8003  (--port)"
    assert shown(settings, "cache_tokens") == "393216  (profile q8_384k)"
    assert shown(settings, "prefix_reuse") == "exact  (default)"


def test_a_key_of_an_older_version_is_named_with_file_and_line(tmp_path):
    with pytest.raises(UserError, match=r"mine.yaml:2: contxt_tokens: .*context_tokens"):
        layered(tmp_path, "port: 8001\ncontxt_tokens: 64k\n")


def test_an_unknown_variable_is_named():
    with pytest.raises(SettingsError, match="TANDEM_SERVE_CONTXT"):
        recipe_settings(None, "q8_384k", {}, read_environment(), variables={"TANDEM_SERVE_CONTXT": "1"})


@pytest.mark.parametrize("text", ["port: [1\n", "port: 1\nport: 2\n", "- port\n", "port: yes\n", "port: x\n"])
def test_a_broken_file_is_named(tmp_path, text):
    with pytest.raises(UserError, match=r"mine\.yaml"):
        layered(tmp_path, text)


def test_a_file_alone_lies_over_the_demo_model(tmp_path):
    settings = layered(tmp_path, "max_running: 3\n", profile=None)
    assert settings.lines[0].startswith(f"recipe {DEMO_RECIPE}")
    load = load_options({}, settings.load)
    assert (load.options.model, load.options.max_running) == (None, 3)


@pytest.mark.parametrize(("text", "tokens"), [("1m", 1_048_576), ("96k", 98_304), ("512", 512)])
def test_token_counts_read_alike_in_flags_and_files(tmp_path, text, tokens):
    assert load_options({"context_tokens": text}).options.context_tokens == tokens
    in_file = layered(tmp_path, f"context_tokens: {text}\n")
    assert load_options({}, in_file.load).options.context_tokens == tokens
    by_flag = layered(tmp_path, "port: 0\n", context_tokens=text)
    assert load_options({}, by_flag.load).options.context_tokens == tokens


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        recipe_settings(None, None, {}, read_environment(), file=tmp_path / "none.yaml")
