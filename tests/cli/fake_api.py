"""An OpenAI-compatible endpoint with scripted answers, for commands that are given ``--url``."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMINGS = {
    "queue_ms": 1.0, "prompt_n": 7, "prompt_ms": 70.0, "predicted_n": 3, "predicted_ms": 200.0, "cached_n": 2,
}  # fmt: skip
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


@dataclass
class FakeApi:
    """``pieces``: (field of the delta, text). ``ending``: ``done``, ``error`` (an event), ``cut`` (the
    connection), or ``interrupt`` (a SIGINT to this process, and silence)."""

    url: str = ""
    key: str | None = None
    pieces: list[tuple[str, str]] = field(default_factory=lambda: [("content", "Hel"), ("content", "lo.")])
    ending: str = "done"
    with_timings: bool = True
    status: int = 200
    error_body: bytes = b'{"error": {"message": "max_tokens must be at least 1", "param": "max_tokens"}}'
    context: int = 4096
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"data": [{"id": "fake-model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.api.requests.append((self.path, body))
        if self.api.key and self.headers.get("Authorization") != f"Bearer {self.api.key}":
            self._send(401, b'{"error": {"message": "Wrong API key"}}')
        elif self.api.status != 200:
            self._send(self.api.status, self.api.error_body)
        elif self.path == "/tokenize":
            words = body["prompt"].split()
            self._json(
                {"tokens": list(range(len(words))), "count": len(words), "max_model_len": self.api.context}
            )
        else:
            self._stream(body)

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        self.wfile.write(b": still here\n\n")
        for name, text in self.api.pieces:
            choice = {"text": text} if self.path == "/v1/completions" else {"delta": {name: text}}
            self._event({"choices": [{"index": 0, **choice}]})
        if self.api.ending == "error":
            self._event({"error": {"message": "The engine has failed: out of luck"}})
            return
        if self.api.ending == "cut":
            return
        if self.api.ending == "interrupt":
            self.wfile.flush()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
            return
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        last: dict[str, Any] = {"choices": [], "usage": USAGE}
        if self.api.with_timings:
            wanted = body.get("max_tokens") if body.get("ignore_eos") else None
            last["timings"] = {**TIMINGS, **({"predicted_n": wanted} if wanted else {})}
        self._event(last)
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _json(self, data: dict[str, Any]) -> None:
        self._send(200, json.dumps(data).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    api = FakeApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
