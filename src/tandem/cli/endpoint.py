"""Where chat, generate and bench send their requests: a given server, or one of our own in this process.

Our own is the real server on a free loopback port behind a random key, so that both ways run the same code.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.cli.client import ApiClient
from tandem.cli.console import notices
from tandem.cli.progress import progress_for
from tandem.core.errors import SettingsError
from tandem.core.log import configure_logging
from tandem.core.options import LoadOptions
from tandem.core.settings import read_environment

if TYPE_CHECKING:
    from tandem.api import Service


@dataclass(frozen=True, slots=True)
class Endpoint:
    client: ApiClient
    model: str
    service: Service | None
    """The model behind it, if it is in this process."""


@contextmanager
def open_endpoint(url: str | None, api_key: str | None, options: LoadOptions) -> Iterator[Endpoint]:
    """Connect to ``url``, or load ``options.model`` here. Raises UserError and its kin."""
    environment = read_environment()
    if url is not None:
        if options != LoadOptions():
            raise SettingsError(
                "--url talks to a server that has its model already",
                found="flags that load a model",
                remedy="give them to `tandem serve`, or leave out --url",
            )
        key = api_key or next(iter(environment.api_keys), None)
        with ApiClient(url, key) as client:
            yield Endpoint(client, client.model_id(), None)
        return
    configure_logging("warning")
    from tandem.api.load import open_service
    from tandem.server.config import ServerConfig
    from tandem.server.run import bind, serve, server_url

    service = open_service(options, environment, progress_for(notices()))
    config = ServerConfig(port=0, api_keys=(secrets.token_urlsafe(16),))
    listener = bind(config)
    # A daemon: it ends with the process, after `shutdown` has ended every request.
    threading.Thread(target=serve, args=(service, config, listener), name="server", daemon=True).start()
    try:
        with ApiClient(server_url(listener), config.api_keys[0]) as client:
            yield Endpoint(client, service.card.id, service)
    finally:
        service.shutdown()
