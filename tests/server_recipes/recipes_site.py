"""A running catalogue for tests: the application in process, or a real server on a free port."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.testclient import TestClient

from tandem.core.plan import GIB
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.fit import CardFit, FitReport, FitTerm
from tandem.server.recipes_web.routes import recipes_app


class ByTokens:
    """A calculator for tests: the cache takes 100 kB a token, the weights 10 GiB."""

    def fit(self, subject, geometry, hardware):
        tokens = subject.cache_tokens or subject.request_tokens
        if tokens is None:
            return FitReport("unknown", "the profile states no tokens")
        terms = (FitTerm("weights", 10 * GIB, "exact"), FitTerm("kv_pages", tokens * 100_000, "estimated"))
        used = sum(term.bytes for term in terms)
        cards = tuple(
            CardFit(f"cuda:{i}", usable, used, used, used + GIB, terms)
            for i, usable in enumerate(hardware.usable_bytes)
        )
        fits = used + GIB <= min(hardware.usable_bytes)
        marginal = used <= min(hardware.usable_bytes)
        verdict = "fits" if fits else "marginal" if marginal else "no"
        levers = () if fits else ("a smaller cache",)
        return FitReport(verdict, f"{tokens:,} tokens", cards, "cuda:0", levers)


def client(catalogue: Catalogue) -> TestClient:
    return TestClient(recipes_app(catalogue), follow_redirects=False)


@contextlib.contextmanager
def served(catalogue: Catalogue) -> Iterator[str]:
    """The address of a real server."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(recipes_app(catalogue), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
