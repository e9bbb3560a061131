"""The OpenAPI document. Bodies are read by us and not by FastAPI, so their schemas are added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tandem import __version__
from tandem.server.schemas.answers import ErrorAnswer
from tandem.server.schemas.chat import ChatRequest
from tandem.server.schemas.completions import (
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from tandem.server.schemas.parse import RequestModel

_REFS = "#/components/schemas/{model}"
_BODIES: tuple[type[RequestModel], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeTextRequest,
    TokenizeChatRequest,
    DetokenizeRequest,
)
_ERRORS = {
    400: "The request is wrong; param names the field",
    401: "No valid API key",
    404: "Unknown model",
    413: "The body is too large",
    415: "The body is not sent as JSON",
    429: "The queue is full; see Retry-After",
    500: "The engine failed on this request",
    503: "Loading, stopping or failed; see Retry-After",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": _ERRORS[status]} for status in statuses}


def describe(
    body: type[RequestModel],
    answer: type[BaseModel],
    *,
    alternative: type[RequestModel] | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    """Keyword arguments of a POST route: its body, answer and errors."""
    schema: dict[str, Any] = {"$ref": _REFS.format(model=body.__name__)}
    if alternative is not None:
        schema = {"anyOf": [schema, {"$ref": _REFS.format(model=alternative.__name__)}]}
    ok: dict[str, Any] = {"model": answer}
    if streams:
        ok["content"] = {"text/event-stream": {}}
    failures = (400, 401, 404, 413, 415, 429, 500, 503) if streams else (400, 401, 404, 413, 415, 503)
    return {
        "responses": {200: ok, **errors(*failures)},
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    }


def install_openapi(app: FastAPI, *, has_keys: bool) -> None:
    """Build the document once, at the first call for it."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            built = get_openapi(title="Tandem", version=__version__, routes=app.routes)
            _, definitions = models_json_schema(
                [(body, "validation") for body in _BODIES], by_alias=True, ref_template=_REFS
            )
            components = built.setdefault("components", {})
            schemas = components.setdefault("schemas", {})
            schemas.update(definitions["$defs"])
            _drop_validation_errors(built, schemas)
            if has_keys:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                built["security"] = [{"key": []}]
            app.openapi_schema = built
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to replace it


def _drop_validation_errors(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    """FastAPI documents a 422 for every route with a path parameter; here there is none."""
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
