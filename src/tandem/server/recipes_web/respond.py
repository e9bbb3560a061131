"""How the catalogue answers: headers, ETags, redirects of aliases, and errors as pages or JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel

from tandem import __version__
from tandem.core.errors import UserError
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.facets import LABELS
from tandem.recipes.query import Query
from tandem.recipes.query_error import QueryError, UnknownFacetError, UnknownRecipeError
from tandem.recipes.values import plain_text
from tandem.server.recipes_web import pages
from tandem.server.recipes_web.answers import ErrorAnswer, ErrorDetail

ROOT = "/recipes"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

Answer = Callable[[], Response]


class Responder:
    """Shared by all endpoints. ``home`` is the address of the server's own page, None where there is none."""

    def __init__(self, catalogue: Catalogue, home: str | None) -> None:
        self._catalogue = catalogue
        self._templates = pages.make_templates()
        self._assets = pages.assets_version()
        self._templates.globals.update(
            root=ROOT, home=home, assets=self._assets, labels=LABELS, plain=plain_text, here="", search=""
        )

    def query(self, request: Request) -> Query:
        """Raises QueryError."""
        return self._catalogue.parse(request.query_params.multi_items())

    def page(self, request: Request, answer: Answer) -> Response:
        """An HTML endpoint: what the user got wrong becomes a page that says so."""
        try:
            return answer()
        except UnknownRecipeError as error:
            links = [(similar, f"/{similar}") for similar in error.similar]
            heading = f"No recipe “{error.recipe_id}”"
            message = "The catalogue has no recipe with this id." + (" Did you mean:" if links else "")
            return self._error_page(404, heading, message, None, [*links, ("All recipes", "")])
        except QueryError as error:
            message = f"{error.param}: {error.problem}."
            return self._error_page(
                400, "This address asks for something that cannot be", message, error.remedy
            )
        except UserError as error:
            return self._error_page(400, "This cannot be done", error.message, error.remedy)

    def data(self, answer: Answer) -> Response:
        """A JSON or file endpoint: the same errors as OpenAI's error object."""
        try:
            return answer()
        except UnknownRecipeError as error:
            return self._error(404, str(error), "recipe_id", "not_found")
        except UnknownFacetError as error:
            return self._error(404, str(error), "key", "not_found")
        except QueryError as error:
            return self._error(400, str(error), error.param, "bad_query")
        except UserError as error:
            return self._error(400, str(error), None, None)

    def html(
        self, request: Request, key: str, template: str, values: Callable[[], dict[str, Any]]
    ) -> Response:
        def body() -> bytes:
            shown = {"version": self._catalogue.version} | values()
            return self._templates.get_template(template).render(shown).encode()

        return self._conditional(
            request, f"{template}\0{key}\0{self._assets}", "text/html; charset=utf-8", body
        )

    def json(self, request: Request, key: str, build: Callable[[], BaseModel]) -> Response:
        return self._conditional(
            request, f"json\0{key}", "application/json", lambda: build().model_dump_json().encode()
        )

    def text(self, request: Request, key: str, media_type: str, build: Callable[[], str]) -> Response:
        return self._conditional(request, f"text\0{key}", media_type, lambda: build().encode())

    def stream(
        self, request: Request, key: str, media_type: str, name: str, parts: Iterator[str]
    ) -> Response:
        """A file of any size, written as it is read."""
        etag = self._etag(f"{name}\0{key}")
        if _matches(request, etag):
            return Response(status_code=304, headers=_HEADERS | {"ETag": etag})
        headers = _HEADERS | {"ETag": etag, "Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse((part.encode() for part in parts), media_type=media_type, headers=headers)

    def redirect(self, suffix: str, query: Query) -> Response:
        """To the canonical address of a query that used other names."""
        return RedirectResponse(
            ROOT + suffix + query.query_string(), 307, headers={"Cache-Control": "no-cache"}
        )

    def _conditional(
        self, request: Request, key: str, media_type: str, body: Callable[[], bytes]
    ) -> Response:
        etag = self._etag(key)
        headers = _HEADERS | {"ETag": etag}
        if _matches(request, etag):
            return Response(status_code=304, headers=headers)
        return Response(body(), media_type=media_type, headers=headers)

    def _etag(self, key: str) -> str:
        """From the dataset, the canonical query and this program's version: no page is built to find out."""
        text = f"{self._catalogue.version}\0{__version__}\0{key}"
        return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'

    def _error_page(
        self,
        status: int,
        heading: str,
        message: str,
        remedy: str | None,
        links: list[tuple[str, str]] | None = None,
    ) -> Response:
        shown = {
            "version": self._catalogue.version,
            "heading": heading,
            "message": message,
            "remedy": remedy,
            "links": links if links is not None else [("All recipes", "")],
        }
        body = self._templates.get_template("error.html").render(shown)
        return Response(body, status, media_type="text/html; charset=utf-8", headers=_HEADERS)

    def _error(self, status: int, message: str, param: str | None, code: str | None) -> Response:
        body = ErrorAnswer(error=ErrorDetail(message=message, param=param, code=code))
        return Response(body.model_dump_json(), status, media_type="application/json", headers=_HEADERS)


def _matches(request: Request, etag: str) -> bool:
    held = request.headers.get("if-none-match", "")
    return held.strip() == "*" or etag in [tag.strip() for tag in held.split(",")]
