"""The catalogue's JSON API against its own OpenAPI description: nothing that it promises is broken."""

from __future__ import annotations

import datetime as dt

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tandem.recipes.catalogue import Catalogue
from tandem.server.recipes_web.routes import recipes_app

load_all_checks()
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", recipes_app(Catalogue(None, today=dt.date(2026, 11, 1)))
)


@schema.parametrize()
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_api_keeps_its_promises(case):
    query = case.query or {}
    # What OpenAPI cannot say: only the server's own cursors are accepted, fits needs hw beside it, and of a
    # card no more is usable than there is.
    hardware = str(query.get("hw") or "")
    without = not hardware.strip() and any(key.startswith("fits") for key in query)
    depends = query.get("cursor") or without or "usable" in hardware
    case.call_and_validate(excluded_checks=[positive_data_acceptance] if depends else [])
