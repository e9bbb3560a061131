"""The listening process: early bind, signals, and a bounded end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn

from tandem.api import Service
from tandem.core.errors import EngineFault, ServeError
from tandem.core.log import get_logger
from tandem.recipes.catalogue import Catalogue
from tandem.server.app import create_app
from tandem.server.config import ServerConfig

_log = get_logger("server")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
FAULT_POLL_S = 0.5
LAST_WORDS_S = 1.0
"""After the running requests were ended: time for their error events to reach the clients."""


def bind(config: ServerConfig) -> socket.socket:
    """Open the port; meant to be called before loading. Raises ServeError: unsafe bind, port in use, no such
    address."""
    config.check()
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ServeError(f"Cannot listen on {config.host}", found=str(error.strerror)) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise _bind_error(config, error) from None
    return listener


def _bind_error(config: ServerConfig, error: OSError) -> ServeError:
    asked = f"Cannot listen on {config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return ServeError(
            asked, found="the port is in use", remedy="--port 0 for any free port, or end the other server"
        )
    if error.errno == errno.EACCES:
        return ServeError(asked, found="not permitted", remedy="a port above 1023")
    return ServeError(asked, found=error.strerror or str(error), remedy="--host 127.0.0.1")


def server_url(listener: socket.socket) -> str:
    """Where a browser on this machine reaches the server."""
    host, port = listener.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, with an end of our own: the scheduler stops first, so that streams end with a word."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._drain_timeout_s = drain_timeout_s
        self._task: asyncio.Task[None] | None = None

    async def run_until_stopped(self, listener: socket.socket) -> bool:
        """Serve; False if a second signal cut the ending short."""
        self._task = asyncio.create_task(self.serve(sockets=[listener]))
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.force_exit:
                raise
        return not self.force_exit

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, does not raise the signals again once all is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends requests (after the drain time), the second ends the server at once."""
        if not self.should_exit:
            self.stop()
        elif self._task is not None:
            self.force_exit = True
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def stop(self) -> None:
        """Refuse and end requests on a thread of their own: waiting for the drain must not stop the loop."""
        self.should_exit = True
        threading.Thread(
            target=self._service.shutdown, args=(self._drain_timeout_s,), name="shutdown", daemon=True
        ).start()


def serve(
    service: Service,
    config: ServerConfig,
    listener: socket.socket | None = None,
    catalogue: Catalogue | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; returns when everything is closed.

    ``listener`` is from ``bind``, which is called here if it was not before. The service may be attached (the
    model loaded) at any time from another thread. Raises ServeError; EngineFault with ``exit_on_fault``;
    KeyboardInterrupt if a second signal came, when threads of the engine may still be ending.
    """
    listener = bind(config) if listener is None else listener
    server = _Server(
        uvicorn.Config(
            create_app(service, config, catalogue),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=math.ceil(config.drain_timeout_s + LAST_WORDS_S),
        ),
        service,
        config.drain_timeout_s,
    )
    _log.info("listening on %s", server_url(listener))
    ended_in_order, fault = asyncio.run(_run(server, service, config, listener))
    if not ended_in_order:
        raise KeyboardInterrupt
    service.shutdown(0.0)
    if fault is not None:
        raise EngineFault(fault)


async def _run(
    server: _Server, service: Service, config: ServerConfig, listener: socket.socket
) -> tuple[bool, str | None]:
    fault: str | None = None

    async def stop_on_fault() -> None:
        nonlocal fault
        while service.state.phase != "failed":
            await asyncio.sleep(FAULT_POLL_S)
        fault = service.state.detail
        server.stop()

    watcher = asyncio.create_task(stop_on_fault()) if config.exit_on_fault else None
    try:
        return await server.run_until_stopped(listener), fault
    finally:
        if watcher is not None:
            watcher.cancel()
