"""``POST /v1/chat/completions`` and ``POST /v1/completions``"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from tandem.server.context import ServerContext
from tandem.server.openapi import describe
from tandem.server.prepare import prepare_chat, prepare_completion
from tandem.server.routes.answer import answer
from tandem.server.schemas.answers import ChatCompletion, Completion
from tandem.server.schemas.chat import ChatRequest
from tandem.server.schemas.completions import CompletionRequest
from tandem.server.shapes import ChatShape, CompletionShape


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["generation"])

    @routes.post("/v1/chat/completions", **describe(ChatRequest, ChatCompletion, streams=True))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, whole or as server-sent events."""
        return await answer(request, context, prepare_chat, ChatShape)

    @routes.post("/v1/completions", **describe(CompletionRequest, Completion, streams=True))
    async def completions(request: Request) -> Response:
        """Continue one or several prompts, given as text or as token ids."""
        return await answer(request, context, prepare_completion, CompletionShape)

    return routes
