"""Layers of settings become one configuration that knows where every value came from."""

from __future__ import annotations

import dataclasses

import pytest

from tandem.core.errors import SettingsError
from tandem.core.options import LoadOptions, SettingsLayer, parse_tokens, resolve_options


def test_later_layers_win_and_are_named() -> None:
    resolved = resolve_options(
        LoadOptions,
        [
            SettingsLayer("recipe", {"max_running": 4, "max_waiting": 9}),
            SettingsLayer("flag", {"max_running": 2, "threads": None}),
        ],
    )
    assert (resolved.options.max_running, resolved.options.max_waiting) == (2, 9)
    assert resolved.options.threads is None
    assert resolved.sources["max_running"] == "flag"
    assert resolved.sources["max_waiting"] == "recipe"
    assert resolved.sources["threads"] == "default"
    assert set(resolved.sources) == {field.name for field in dataclasses.fields(LoadOptions)}


def test_an_unknown_key_is_an_error_that_names_it_and_its_layer() -> None:
    with pytest.raises(SettingsError, match="Unknown setting max_runing; found: in profile q8"):
        resolve_options(LoadOptions, [SettingsLayer("profile q8", {"max_runing": 1})])


def test_a_setting_without_default_must_be_set() -> None:
    @dataclasses.dataclass(frozen=True)
    class Needy:
        path: str
        size: int = 1

    with pytest.raises(SettingsError, match="No value for path"):
        resolve_options(Needy, [])
    assert resolve_options(Needy, [SettingsLayer("flag", {"path": "x"})]).options == Needy("x", 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_tokens", 1), ("max_running", 0), ("max_waiting", -1), ("chunk_tokens", 0),
        ("threads", 0), ("max_wait_s", 0.0), ("max_wait_s", float("nan")), ("prefix_reuse", "maybe"),
        ("served_names", ("a", " ")),
    ],
)  # fmt: skip
def test_values_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(SettingsError):
        LoadOptions(**{name: value}).check()  # type: ignore[arg-type]


def test_the_defaults_are_in_range() -> None:
    LoadOptions().check()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("393216", 393_216), ("384k", 393_216), ("1M", 1_048_576), ("1.5k", 1536)],
)
def test_token_counts(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "-1", "0", "many", "nan", "1.5", "nank", "1e999k"])
def test_bad_token_counts(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_tokens(text)
