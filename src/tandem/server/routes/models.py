"""``GET /v1/models`` and ``GET /v1/models/{id}``. Not a readiness signal: that is ``/health``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from tandem.api import ModelCard
from tandem.server.context import ServerContext
from tandem.server.openapi import errors
from tandem.server.prepare import check_model
from tandem.server.schemas.answers import Model, ModelList


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["models"])

    @routes.get("/v1/models", responses={200: {"model": ModelList}, **errors(401, 503)})
    async def list_models() -> dict[str, Any]:
        """The served model."""
        return {"object": "list", "data": [model_entry(context.service.card)]}

    @routes.get("/v1/models/{model_id:path}", responses={200: {"model": Model}, **errors(401, 404, 503)})
    async def retrieve_model(model_id: str) -> dict[str, Any]:
        """The served model, by its id or an alias."""
        card = context.service.card
        check_model(card, model_id)
        return model_entry(card)

    return routes


def model_entry(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.context_tokens,
        "context_length": card.context_tokens,
        "aliases": list(card.aliases),
        "details": card.details,
    }
