"""How commands end: one line for a user's mistake, a hint for a bug, quiet for Ctrl-C and closed pipes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from cli_outcome import Outcome, Tandem

import tandem
from tandem.cli import main


@pytest.fixture
def failing_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make ``tandem fail`` raise the error given."""

    def install(error: BaseException) -> None:
        app = typer.Typer()

        @app.callback()
        def options(context: typer.Context, debug: bool = False) -> None:
            context.obj.debug = debug

        @app.command("fail")
        def fail() -> None:
            raise error

        monkeypatch.setattr(main, "app", app)

    return install


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["servee"], "No such command 'servee'. Did you mean 'serve'?"),
        (["serve", "--nonsense"], "No such option: --nonsense"),
        (["serve", "--port", "x"], "Invalid value for '--port'"),
        (["serve", "--cards", "gpu:2"], "--cards cannot be read; found: 'gpu:2'"),
        (["serve", "--cards", "cpu:2x600"], "A size is a number with a unit"),
        (["serve", "--context", "lots"], "--context is a number of tokens; found: 'lots'"),
        (["serve", "--context", "1"], "context_tokens must be at least 2"),
        (["serve", "--max-running", "0"], "max_running must be at least 1"),
        (["serve", "--max-wait", "-1"], "max_wait_s must be above 0"),
        (["serve", "--prefix-reuse", "perhaps"], "prefix_reuse is not known; found: perhaps"),
        (["serve", "--log-level", "loud"], "Unknown log level; found: loud"),
        (["rehearse", "--scale", "medium"], "--scale cannot be read; found: medium; try: full or small"),
        (["rehearse", "--kv", "fp32"], "--kv cannot be read; found: fp32; try: fp16 or q8"),
        (["rehearse", "--cards", "cpu:1"], "at full scale runs on CUDA cards; found: cpu:1"),
        (
            ["rehearse", "--out", "/dev/null/records"],
            "/dev/null/records cannot be made; found: Not a directory",
        ),
        (
            ["bench", "--out", "/nowhere/at/all.json"],
            "/nowhere/at/all.json cannot be written; found: no folder /nowhere/at; try: make it first",
        ),
        (
            ["rehearse", "--recipe", "glm53-flash-9x9", "--scale", "small"],
            "No recipe 'glm53-flash-9x9'; try:",
        ),
        (["rehearse", "--recipe", "other"], "Only GLM-5.3-Flash can be rehearsed; found: other"),
        (["serve", "--host", "0.0.0.0"], "Refusing to listen on 0.0.0.0"),
        (["serve", "--port", "70000"], "The port must be between 0 and 65535"),
        (["generate", "hi", "--url", "http://127.0.0.1:9"], "No server answers at http://127.0.0.1:9"),
        (["generate", "hi", "--url", "nonsense"], "nonsense is not an address"),
        (["generate", "hi", "--url", "http://127.0.0.1:9", "--cards", "cpu:2"], "flags that load a model"),
        (["models", "verify", "nothing"], "nothing is not on this machine"),
        (["models", "pull", "./folder"], "./folder cannot be pulled"),
        (["generate", "hi", "--model", "./nowhere"], "There is no model at ./nowhere"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_users_mistake_is_one_line_and_exit_code_2(tandem: Tandem, arguments: list[str], said: str) -> None:
    outcome = tandem(*arguments)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("tandem: ")
    assert outcome.out == ""


def test_a_rehearsal_without_a_card_is_one_line(tandem: Tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a card too: the command would measure for minutes there."""
    monkeypatch.setattr(torch.version, "cuda", None)
    outcome = tandem("rehearse")
    assert (outcome.code, outcome.err.count("\n"), outcome.out) == (2, 1, "")
    assert "Card cuda:0 was asked for; found: a torch without CUDA" in outcome.err


def test_a_broken_environment_variable_is_named(tandem: Tandem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_OFFLINE", "perhaps")
    outcome = tandem("models", "list")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "TANDEM_OFFLINE" in outcome.err


def test_a_bug_tells_how_to_get_the_traceback(
    tandem: Tandem, failing_with: Callable[[BaseException], None]
) -> None:
    failing_with(ZeroDivisionError("division by zero"))
    outcome = tandem("fail")
    assert outcome.code == 1
    assert outcome.err == (
        "tandem: unexpected ZeroDivisionError: division by zero\n"
        "tandem: run `tandem --debug …` again for the traceback\n"
    )
    outcome = tandem("--debug", "fail")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert "in fail" in outcome.err


def test_an_interrupt_is_quiet(tandem: Tandem, failing_with: Callable[[BaseException], None]) -> None:
    failing_with(KeyboardInterrupt())
    assert tandem("fail") == Outcome(130, "", "")


def test_version(tandem: Tandem) -> None:
    assert tandem("--version").out == f"tandem {tandem_version()}\n"


def tandem_version() -> str:
    return tandem.__version__


def test_help_is_shown_without_a_command(tandem: Tandem) -> None:
    outcome = tandem()
    assert "serve" in outcome.out + outcome.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = "from tandem.cli.main import run; import sys; sys.exit(run(['models', 'list', '--json']))"
    command = f'{sys.executable} -c "{program}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_the_installed_command_runs() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("tandem"), "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tandem {tandem.__version__}\n"
