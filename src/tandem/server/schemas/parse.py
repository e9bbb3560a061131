"""From a body to a checked request model, with every complaint naming its field."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem.core.errors import RequestError
from tandem.core.log import get_logger
from tandem.server.body import parse_json_object

_log = get_logger("server")
_FOUND_CHARACTERS = 80

IGNORED_FIELDS = frozenset(
    {
        "store", "metadata", "service_tier", "user", "safety_identifier", "prompt_cache_key", "verbosity",
        "prompt_cache_retention", "prediction", "chat_id", "session_id", "request_id", "id_slot", "priority",
        "include_reasoning", "spaces_between_special_tokens", "background_tasks", "features", "options",
        "keep_alive", "title",
    }
)  # fmt: skip
"""Sent by common clients and without effect here; not worth a line in the log."""


class RequestModel(BaseModel):
    """Strict types, unknown fields kept aside for the log. Every optional field may be null."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, hide_input_in_errors=True)


Model = TypeVar("Model", bound=RequestModel)


def parse_request(body: bytes, model: type[Model]) -> Model:
    """Raises RequestError 400 with ``param`` for the first field that is wrong."""
    data, has_nan = parse_json_object(body)
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        raise _as_request_error(error) from None
    if has_nan:
        raise RequestError("The body is not JSON: NaN and Infinity are not numbers", code="invalid_json")
    extra = request.model_extra or {}
    unknown = sorted({name for name, value in extra.items() if value is not None} - IGNORED_FIELDS)
    if unknown:
        _log.warning("ignored unknown fields: %s", ", ".join(repr(name[:64]) for name in unknown[:16]))
    return request


def _as_request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, RequestError):
        return cause
    param = _field_path(first["loc"])
    message = re.sub("^(Value error|Assertion failed), ", "", first["msg"])
    if first["type"] == "missing":
        return RequestError(f"{param} is required", param=param, code="missing_required_parameter")
    return RequestError(
        f"{param}: {message}",
        param=param,
        code="invalid_value",
        found=shorten(first["input"]),
    )


def _field_path(location: tuple[int | str, ...]) -> str:
    """``("messages", 2, "content")`` as ``messages[2].content``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def shorten(value: Any) -> str:
    """A value as it may stand in an error message."""
    text = repr(value)
    return text if len(text) <= _FOUND_CHARACTERS else text[:_FOUND_CHARACTERS] + "…"
