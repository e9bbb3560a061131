"""A small HTTP server for download tests: ranges, cut connections, scripted statuses, and a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeHttp:
    """``files`` serve ranges, ``pages`` are computed, ``cuts`` ends a file's next answers early."""

    url: str = ""
    files: dict[str, Reply] = field(default_factory=dict)
    pages: dict[str, Callable[[str], Reply]] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    ignore_ranges: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """(method, path, Range header)."""

    def ranges(self, path: str) -> list[str | None]:
        return [asked for method, name, asked in self.requests if method == "GET" and name == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHttp

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        asked = self.headers.get("Range")
        self.fake.requests.append((self.command, path, asked))
        if path in self.fake.pages:
            self._send(self.fake.pages[path](query), with_body)
        elif path in self.fake.files:
            self._send_file(path, asked, with_body)
        else:
            self._send(Reply(b"not found", 404), with_body)

    def _send_file(self, path: str, asked: str | None, with_body: bool) -> None:
        reply = self.fake.files[path]
        if asked and not self.fake.ignore_ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first)
            if start >= len(reply.body):
                self._send(Reply(b"", 416), with_body)
                return
            total = len(reply.body)
            end = min(int(last) + 1, total) if last else total
            headers = {**reply.headers, "Content-Range": f"bytes {start}-{end - 1}/{total}"}
            reply = Reply(reply.body[start:end], 206, headers)
        cuts = self.fake.cuts.get(path)
        cut = cuts.pop(0) if cuts and with_body else None
        self._send(reply, with_body, cut)

    def _send(self, reply: Reply, with_body: bool, cut: int | None = None) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if with_body:
            self.wfile.write(reply.body if cut is None else reply.body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.shutdown(1)
            self.close_connection = True


@contextmanager
def fake_http() -> Iterator[FakeHttp]:
    fake = FakeHttp()
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
