"""``POST /tokenize`` and ``POST /detokenize``"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.api import Service
from tandem.core.errors import RequestError
from tandem.server.body import parse_json_object, read_body
from tandem.server.constraints import plan_tools
from tandem.server.context import ServerContext
from tandem.server.openapi import describe
from tandem.server.prepare import check_model, render_chat
from tandem.server.schemas.answers import Detokenized, Tokenized
from tandem.server.schemas.completions import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from tandem.server.schemas.parse import parse_request


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/tokenize", **describe(TokenizeTextRequest, Tokenized, alternative=TokenizeChatRequest))
    async def tokenize(request: Request) -> Response:
        """Token ids of a text, or of messages as chat would render them (with the rendered prompt)."""
        body = await read_body(request, context.config.max_body_bytes)
        return JSONResponse(await context.off_loop(partial(_tokenize, context.service, body)))

    @routes.post("/detokenize", **describe(DetokenizeRequest, Detokenized))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, control tokens included."""
        body = await read_body(request, context.config.max_body_bytes)
        return JSONResponse(await context.off_loop(partial(_detokenize, context.service, body)))

    return routes


def _tokenize(service: Service, body: bytes) -> dict[str, Any]:
    card, text = service.card, service.text
    data, _ = parse_json_object(body)
    request: TokenizeTextRequest | TokenizeChatRequest
    answer: dict[str, Any] = {}
    if "messages" in data:
        request = parse_request(body, TokenizeChatRequest)
        check_model(card, request.model)
        prompt = render_chat(text, request, with_tools=plan_tools(request).in_prompt)
        tokens = prompt.tokens
        answer["prompt"] = prompt.text
    else:
        request = parse_request(body, TokenizeTextRequest)
        check_model(card, request.model)
        if request.add_special_tokens is False:
            tokens = tuple(text.tokenizer.encode(request.text, special=True))
        else:
            tokens = text.encode_prompt(request.text)
    answer |= {"count": len(tokens), "max_model_len": card.context_tokens, "tokens": list(tokens)}
    if request.return_token_strs:
        pieces = [text.tokenizer.token_bytes(token) for token in tokens]
        answer["token_strs"] = [piece.decode("utf-8", "replace") for piece in pieces]
    return answer


def _detokenize(service: Service, body: bytes) -> dict[str, Any]:
    card, text = service.card, service.text
    request = parse_request(body, DetokenizeRequest)
    check_model(card, request.model)
    size = text.tokenizer.vocab_size
    unknown = next((token for token in request.tokens if token >= size), None)
    if unknown is not None:
        raise RequestError(
            f"token {unknown} is not in the vocabulary of {size}", param="tokens", code="invalid_value"
        )
    return {"prompt": text.tokenizer.decode(request.tokens)}
