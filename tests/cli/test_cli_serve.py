"""``tandem serve`` as a process of its own: configuration, refusals, a real answer, and its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cli_outcome import Tandem

from tandem.api import ModelCard
from tandem.cli.serve import _print_ready, shown_value
from tandem.core.cards import parse_cards
from tandem.core.requests import SamplingDefaults
from tandem.server.config import ServerConfig

# The real cache: compiled kernels and the demo model are kept there between runs.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TANDEM_API_KEY"}
TANDEM = Path(sys.executable).with_name("tandem")


@contextmanager
def serving(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process and its lines of standard error up to the address it listens at."""
    process = subprocess.Popen(
        [TANDEM, "serve", "--port", "0", *arguments],
        env={**ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if line.startswith("Listening at"):
                break
        yield process, lines
    finally:
        process.kill()
        process.communicate()


def address(lines: list[str]) -> str:
    match = re.search(r"http://[\d.]+:\d+", lines[-1])
    assert match, "".join(lines)
    return match[0]


def wait_until_ready(url: str, process: subprocess.Popen[str]) -> set[int]:
    """Poll /health until it says 200; returns every status seen on the way."""
    seen = set()
    while 200 not in seen:
        assert process.poll() is None, process.communicate()[1]
        seen.add(httpx.get(f"{url}/health", trust_env=False).status_code)
        time.sleep(0.1)
    return seen


@pytest.mark.demo
@pytest.mark.slow
def test_from_start_to_answer_to_end(demo_gguf: Path) -> None:
    with serving("--cards", "cpu:2", "--context", "1k", "--served-name", "demo", "--served-name", "alias",
                 TANDEM_API_KEY="secret") as (process, lines):  # fmt: skip
        table = {line.split()[0]: line.split() for line in lines if line.strip()}
        assert table["context_tokens"][1:] == ["1024", "flag"]
        assert table["max_running"][1:] == ["8", "default"]
        assert table["api_keys"][1:] == ["1", "set", "environment"]
        assert "secret" not in "".join(lines)

        url = address(lines)
        assert wait_until_ready(url, process) <= {503, 200}
        body = {"model": "alias", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120, trust_env=False
        ).json()
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] <= 4

        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in log
        ready = log.partition("Ready: ")[2]
        assert ready.startswith(f"demo, 1,024 tokens of context, at {url}\n")
        assert "$TANDEM_API_KEY" in ready.partition("curl ")[2]


@pytest.mark.demo
@pytest.mark.slow
def test_generate_loads_the_model_itself(demo_gguf: Path) -> None:
    done = subprocess.run(
        [TANDEM, "generate", "Name a color.", "-n", "3", "-t", "0", "--json", "--context", "512"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answer = json.loads(done.stdout)
    assert answer["model"] == "SmolLM2-135M-Instruct"
    assert answer["usage"]["completion_tokens"] == 3
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "./nowhere"], "There is no model at ./nowhere"),
        (["--model", "org/name"], "org/name@main is not on this machine and offline mode is set"),
        (["--model", __file__], "test_cli_serve.py is not a model"),
    ],
)
def test_a_model_that_cannot_load_ends_the_server_with_one_line(arguments: list[str], said: str) -> None:
    with serving(*arguments, TANDEM_OFFLINE="1") as (process, _):
        _, log = process.communicate(timeout=60)
        assert process.returncode == 2
        assert log.splitlines()[-1].startswith("tandem: ")
        assert said in log.splitlines()[-1]
        assert "Traceback" not in log


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [TANDEM, "serve", "--port", port], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"tandem: Cannot listen on 127.0.0.1:{port}; found: the port is in use")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("model", None, "demo"),
        ("threads", None, "automatic"),
        ("api_keys", ("a", "b"), "2 set"),
        ("api_keys", (), "none"),
        ("cors_origins", ("http://a", "http://b"), "http://a, http://b"),
        ("cards", parse_cards("cpu:1x1GiB"), "cpu:0=1GiB"),
        ("max_running", 8, "8"),
    ],
)
def test_values_are_shown_without_secrets(name: str, value: object, shown: str) -> None:
    assert shown_value(name, value) == shown


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-body", "10"], "A size is a number with a unit"),
        (["--max-body", "10B"], "at least 1024 bytes"),
        (["--max-choices", "0"], "At least one choice"),
        (["--thinking-budget", "-1"], "0 or more"),
        (["--keepalive", "99"], "at most 15 s"),
        (["--keepalive", "nan"], "keep-alive"),
        (["--stall-timeout", "0"], "stall_timeout_s must be above 0"),
        (["--context", "many"], "--context is a number of tokens; found: 'many'"),
    ],
)
def test_a_limit_out_of_range_is_one_line(tandem: Tandem, flags: list[str], said: str) -> None:
    outcome = tandem("serve", *flags)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_config_file_variables_and_flags_in_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is printed before the model is looked for; each value names its source."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("context_tokens: 1k\nmax_running: 3\nchunk_tokens: 32\n")
    flags = ("--config", "mine.yaml", "--chunk", "64", "--max-body", "1MiB", "--max-choices", "2")
    with serving(*flags, TANDEM_SERVE_MAX_RUNNING="2") as (_, lines):
        table = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert table["context_tokens"] == ["1024", "mine.yaml"]
    assert table["max_running"] == ["2", "TANDEM_SERVE_MAX_RUNNING"]
    assert table["chunk_tokens"] == ["64", "flag"]
    assert table["max_body_bytes"] == ["1048576", "flag"]
    assert table["max_choices"] == ["2", "flag"]
    assert table["model"] == ["demo", "default"]


@pytest.mark.demo
@pytest.mark.slow
def test_a_config_file_serves_and_its_limits_hold(demo_gguf: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("context_tokens: 512\ncache_tokens: 512\ncache_format: fp32\n")
    with serving("--config", str(config), "--max-choices", "1", "--max-body", "4KiB") as (process, lines):
        url = address(lines)
        wait_until_ready(url, process)
        ask = {"prompt": "Once", "max_tokens": 2}
        with httpx.Client(base_url=f"{url}/v1", trust_env=False) as client:
            (model,) = client.get("/models").json()["data"]
            assert model["max_model_len"] == 512
            assert client.post("/completions", json=ask).status_code == 200
            assert client.post("/completions", json={**ask, "n": 2}).status_code == 400
            assert client.post("/completions", json={**ask, "prompt": "x" * 5000}).status_code == 413


@pytest.mark.parametrize(
    ("unavailable", "expected"),
    [
        (None, ["/v1/chat/completions"]),
        ("/m has no chat_template.jinja", ["/v1/completions", '"prompt": "Hello"', "Chat is off: /m has no"]),
    ],
)
def test_a_model_without_template_says_so_when_it_is_ready(
    capsys: pytest.CaptureFixture[str], unavailable: str | None, expected: list[str]
) -> None:
    """Case N6."""
    service: Any = SimpleNamespace(
        card=ModelCard("tiny", 0, 64),
        text=SimpleNamespace(chat_unavailable=unavailable, sampling=SamplingDefaults(top_k=20)),
    )
    _print_ready(service, ServerConfig(), "http://127.0.0.1:1")
    said = capsys.readouterr().err
    assert all(part in said for part in expected)
    assert ("Chat is off" in said) == (unavailable is not None)
    assert "Where a request is silent: top_k 20." in said
