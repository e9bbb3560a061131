"""Everything that goes wrong, as OpenAI's error object. No HTML, no traceback, never a 422."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from tandem.core.errors import RequestError, TandemError
from tandem.core.log import get_logger

_log = get_logger("server")

CountError = Callable[[RequestError], None]


def as_request_error(error: BaseException) -> RequestError:
    """Any failure as a RequestError; what is not a request's own fault becomes a 500."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, TandemError):
        return RequestError(str(error), status=500, code="engine_error")
    return RequestError("The server failed on this request; its log has the details", status=500)


def error_object(error: RequestError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``"""
    return {
        "error": {"message": str(error), "type": error.type, "param": error.param, "code": error.code},
    }


def error_response(error: RequestError) -> JSONResponse:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_object(error), status_code=error.status, headers=headers)


def _from_http_exception(request: Request, error: HTTPException) -> Response:
    """Unknown routes and methods (the router's own answers)."""
    headers = dict(error.headers or {})
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=headers)
    path = request.url.path
    if error.status_code == 404:
        refusal = RequestError(f"No such route: {request.method} {path}", status=404, code="not_found")
    elif error.status_code == 405:
        refusal = RequestError(
            f"{request.method} is not allowed on {path}",
            status=405,
            code="method_not_allowed",
            remedy=headers.get("Allow"),
        )
    else:
        refusal = RequestError(str(error.detail), status=error.status_code)
    response = error_response(refusal)
    response.headers.update(headers)
    return response


def install_error_handlers(app: FastAPI, count: CountError) -> None:
    """Every exception that leaves a route becomes an error object, and is counted."""

    @app.exception_handler(TandemError)
    async def on_tandem_error(request: Request, error: TandemError) -> Response:
        refusal = as_request_error(error)
        if refusal.status >= 500:
            _log.error("%s %s: %s", request.method, request.url.path, error)
        count(refusal)
        return error_response(refusal)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> Response:
        return _from_http_exception(request, error)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        refusal = as_request_error(error)
        count(refusal)
        return error_response(refusal)
