"""``/health``, ``/metrics`` and the status page ``/``"""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from jinja2 import Environment, PackageLoader, select_autoescape
from starlette.responses import HTMLResponse, JSONResponse, Response

from tandem.core.errors import RequestError
from tandem.server.context import ServerContext
from tandem.server.health import LOADING_RETRY_S
from tandem.server.openapi import errors
from tandem.server.schemas.answers import HealthReport

STATIC_FILES = frozenset({"status.css", "status.js"})
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["status"])
    pages = Environment(
        loader=PackageLoader("tandem.server", "web"), autoescape=select_autoescape(default=True)
    )

    async def health() -> Response:
        """200 when a request would be answered now, else 503 with the reason or the progress of loading."""
        report = context.monitor.report()
        headers = {"Retry-After": str(LOADING_RETRY_S)} if report["status"] == "loading" else {}
        return JSONResponse(report, status_code=200 if report["status"] == "ok" else 503, headers=headers)

    async def metrics() -> Response:
        """Prometheus text."""
        return Response(context.metrics.render(), media_type="text/plain; version=0.0.4")

    async def page() -> Response:
        report = context.monitor.report()
        return HTMLResponse(
            pages.get_template("status.html").render(
                report=report, details=_details(context), needs_key=bool(context.config.api_keys)
            ),
            headers=PAGE_HEADERS,
        )

    async def static(name: str) -> Response:
        if name not in STATIC_FILES:
            raise RequestError(f"No such file: {name[:64]}", status=404, code="not_found")
        content = files("tandem.server").joinpath("web", name).read_bytes()
        return Response(content, media_type=mimetypes.guess_type(name)[0], headers=PAGE_HEADERS)

    unhealthy: dict[int | str, dict[str, Any]] = {
        200: {"model": HealthReport},
        503: {"model": HealthReport, "description": "Loading, stopping, stalled or failed"},
    }
    prometheus: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    routes.add_api_route("/health", health, methods=["GET"], responses=unhealthy, response_class=JSONResponse)
    routes.add_api_route(
        "/metrics", metrics, methods=["GET"], responses={**prometheus, **errors(401)}, response_class=Response
    )
    routes.add_api_route("/", page, methods=["GET", "HEAD"], include_in_schema=False)
    routes.add_api_route("/static/{name}", static, methods=["GET", "HEAD"], include_in_schema=False)
    for path, handler in (("/health", health), ("/metrics", metrics)):
        routes.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)
    return routes


def _details(context: ServerContext) -> dict[str, str]:
    """What people want to know of the model, once it is there."""
    if not context.monitor.check().is_ok:
        return {}
    card = context.service.card
    return {"context": f"{card.context_tokens:,} tokens", **card.details}
