"""Signals to a server process: case J7, draining, and the exit on a fault."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Joined, join, parse_events

HERE = Path(__file__).parent
GENEROUS_S = 15.0
"""Not a measurement: a machine under load must still see the end."""


class StubProcess:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve_stub.py"), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + GENEROUS_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.ConnectError:
                time.sleep(0.05)
        raise AssertionError("never ready")

    def stream(self, text: str) -> tuple[threading.Thread, list[bytes]]:
        """Start reading a stream; returns once its first event is here."""
        received: list[bytes] = []
        begun = threading.Event()
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 3000
        }  # fmt: skip

        def read() -> None:
            url = f"{self.url}/v1/chat/completions"
            with (
                contextlib.suppress(httpx.RemoteProtocolError),  # cut off in mid-stream
                httpx.stream("POST", url, json=body, timeout=60) as response,
            ):
                for chunk in response.iter_bytes():
                    received.append(chunk)
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(GENEROUS_S)
        return thread, received

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=GENEROUS_S)
        return self.process.returncode, out, err


@pytest.fixture
def processes() -> Iterator[list[StubProcess]]:
    started: list[StubProcess] = []
    yield started
    for stub in started:
        stub.process.kill()
        stub.process.wait()


def joined(received: list[bytes]) -> Joined:
    return join(parse_events(b"".join(received)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_j7_signal_cuts_streams_off_with_an_error_event(
    tmp_path: Path, processes: list[StubProcess], number: signal.Signals
) -> None:
    stub = StubProcess(tmp_path, "0")
    processes.append(stub)
    stub.wait_ready()
    thread, received = stub.stream("story")
    stub.process.send_signal(number)
    code, out, err = stub.end()
    thread.join(GENEROUS_S)
    assert (code, out.strip()) == (0, "ended in order")
    assert "Traceback" not in err
    result = joined(received)
    assert result.error is not None
    assert "shutting down" in result.error["message"]
    assert not result.done


def test_j7_drain_lets_running_requests_end(tmp_path: Path, processes: list[StubProcess]) -> None:
    stub = StubProcess(tmp_path, "30")
    processes.append(stub)
    stub.wait_ready()
    thread, received = stub.stream("short")
    stub.process.send_signal(signal.SIGINT)
    code, out, _ = stub.end()
    thread.join(GENEROUS_S)
    assert (code, out.strip()) == (0, "ended in order")
    result = joined(received)
    assert result.done
    assert result.content == "a few words in about half a second"


def test_j7_second_signal_ends_at_once(tmp_path: Path, processes: list[StubProcess]) -> None:
    stub = StubProcess(tmp_path, "600")
    processes.append(stub)
    stub.wait_ready()
    thread, _ = stub.stream("story")
    stub.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert stub.process.poll() is None
    stub.process.send_signal(signal.SIGINT)
    code, out, _ = stub.end()
    thread.join(GENEROUS_S)
    assert code != 0
    assert "ended in order" not in out


def test_j7_idle(tmp_path: Path, processes: list[StubProcess]) -> None:
    stub = StubProcess(tmp_path, "600")
    processes.append(stub)
    stub.wait_ready()
    stub.process.send_signal(signal.SIGINT)
    assert stub.end()[0] == 0


def test_j6_exit_on_fault(tmp_path: Path, processes: list[StubProcess]) -> None:
    stub = StubProcess(tmp_path, "0", "fault")
    processes.append(stub)
    stub.wait_ready()
    answer = httpx.post(
        f"{stub.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "break"}]},
        timeout=30,
    )
    assert answer.status_code == 500
    code, out, _ = stub.end()
    assert code == 1
    assert out.startswith("fault: ")
