"""Field types shared by the request models."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGPROBS = 20


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is the integer 5."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if "" in stops:
        raise ValueError("an empty stop string would match everywhere")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"at most {MAX_STOPS} stop strings are supported")
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise ValueError(f"a stop string may have at most {MAX_STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers")
    bias = []
    for key, amount in value.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 12:
            raise ValueError(f"{key[:40]!r} is not a token id")
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not number or not -100 <= amount <= 100:
            raise ValueError(f"the bias of token {key} must be a number from -100 to 100")
        bias.append((int(key), float(amount)))
    return tuple(bias)


def _schema(value: Any) -> Any:
    if not isinstance(value, dict | bool):
        raise ValueError("must be a JSON Schema: an object, true or false")
    return value


def _schema_or_text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
    return _schema(value)


def _word_or_object(value: Any) -> Any:
    if not isinstance(value, str | dict):
        raise ValueError("must be a string or an object")
    return value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Stops = Annotated[
    tuple[str, ...],
    BeforeValidator(_stops),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
                {
                    "type": "array",
                    "maxItems": MAX_STOPS,
                    "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS},
                },
            ]
        }
    ),
]
LogitBias = Annotated[
    tuple[tuple[int, float], ...],
    BeforeValidator(_logit_bias),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}
    ),
]
JsonObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object"})]
SchemaValue = Annotated[
    Any, AfterValidator(_schema), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}]})
]
"""A JSON Schema; what it may contain is the text room's to say."""
SchemaText = Annotated[
    Any,
    AfterValidator(_schema_or_text),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}),
]
"""A JSON Schema, or its text."""
WordOrObject = Annotated[Any, AfterValidator(_word_or_object)]
