"""The application: routes and middleware around one service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from tandem import __version__
from tandem.api import Service
from tandem.recipes.catalogue import Catalogue
from tandem.server.auth import HostMiddleware, KeyMiddleware, needs_host_check
from tandem.server.config import ServerConfig
from tandem.server.context import MAX_PREPARING, ServerContext
from tandem.server.errors import CountError, install_error_handlers
from tandem.server.health import HealthMonitor
from tandem.server.metrics import Metrics
from tandem.server.openapi import install_openapi
from tandem.server.recipes_web.routes import recipes_router
from tandem.server.routes import generate, models, status, tokens

_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own OpenTelemetry, where it has one: our metrics are ``/metrics``, and nothing calls out."""


def create_app(service: Service, config: ServerConfig, catalogue: Catalogue | None = None) -> FastAPI:
    """The ASGI application of one service, which may still be loading. Its lifespan watches the engine.

    With a ``catalogue`` its pages are at ``/recipes``.
    """
    metrics = Metrics(service)
    monitor = HealthMonitor(service, config)
    context = ServerContext(service, config, metrics, monitor, anyio.CapacityLimiter(MAX_PREPARING))

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(monitor.watch())
        yield
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher

    app = FastAPI(
        title="Tandem",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=_middleware(config, metrics.count_error),
        telemetry=_NO_TELEMETRY,
    )
    for module in (generate, models, tokens, status):
        app.include_router(module.router(context))
    if catalogue is not None:
        app.include_router(recipes_router(catalogue))
    install_error_handlers(app, metrics.count_error)
    install_openapi(app, has_keys=bool(config.api_keys))
    return app


def _middleware(config: ServerConfig, count: CountError) -> list[Middleware]:
    """Outermost first. CORS stands outside so that a preflight needs no key and a 401 can be read."""
    stack = []
    if config.cors_origins:
        stack.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(config.cors_origins),
                allow_methods=["GET", "POST", "HEAD", "OPTIONS"],
                allow_headers=["*"],
                expose_headers=["Retry-After"],
            )
        )
    if needs_host_check(config):
        stack.append(Middleware(HostMiddleware, allowed_hosts=config.allowed_hosts, count=count))
    if config.api_keys:
        stack.append(Middleware(KeyMiddleware, api_keys=config.api_keys, count=count))
    return stack
