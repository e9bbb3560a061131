"""Who may call: API keys, and the Host check that stops DNS rebinding on a loopback bind."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.core.errors import RequestError
from tandem.server.config import ServerConfig
from tandem.server.errors import CountError, error_response

OPEN_PATHS = frozenset({"/", "/health"})
OPEN_PREFIXES = ("/static/", "/recipes")
"""The status page and its files hold nothing that ``/health`` does not tell; its chat asks for the key. The
catalogue can only be read, and a browser cannot send a key with a link."""


class KeyMiddleware:
    """Refuses calls without a known key. Keys are kept as digests and compared in constant time."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...], count: CountError) -> None:
        self._app = app
        self._count = count
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope) or self._has_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        refusal = RequestError(
            "A valid API key is needed",
            status=401,
            code="invalid_api_key",
            remedy="send it as 'Authorization: Bearer KEY'",
        )
        self._count(refusal)
        await error_response(refusal)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return (
            not self._digests
            or scope["method"] == "OPTIONS"
            or path in OPEN_PATHS
            or path.startswith(OPEN_PREFIXES)
        )

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        offered = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(offered.encode("latin-1"))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _digest(key: bytes) -> bytes:
    """Equal lengths, so that comparing tells nothing of a key's length either."""
    return hashlib.sha256(key).digest()


class HostMiddleware:
    """Refuses foreign Host names.

    A web page can point its own name at 127.0.0.1 and would then count as same-origin with this server. It
    cannot do that with an address or with ``localhost``, so these and the names given are enough.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: tuple[str, ...], count: CountError) -> None:
        self._app = app
        self._count = count
        self._allowed = {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_allowed(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send)
            return
        refusal = RequestError(
            "This server answers to its own address only",
            status=403,
            code="host_not_allowed",
            found=f"Host: {Headers(scope=scope).get('host', '')[:100]}",
            remedy="--allowed-host NAME if this is your proxy",
        )
        self._count(refusal)
        await error_response(refusal)(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name = _without_port(host).lower()
        if name in {"", "localhost"} or name.endswith(".localhost") or name in self._allowed:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def needs_host_check(config: ServerConfig) -> bool:
    """With a key a rebinding page gets nowhere, and a wider bind is reached by names we cannot know."""
    return config.is_loopback and not config.api_keys
