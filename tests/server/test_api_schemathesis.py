"""The OpenAI routes against their own description: documented statuses and shapes alone, never a 500."""

from __future__ import annotations

import tempfile
from pathlib import Path

import schemathesis
from harness import make_service
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
)

from tandem.server.app import create_app
from tandem.server.config import ServerConfig

load_all_checks()
_folder = tempfile.TemporaryDirectory()
_service, _ = make_service(Path(_folder.name), {})
_app = create_app(_service, ServerConfig(allowed_hosts=("testserver",)))
schema = schemathesis.openapi.from_asgi("/openapi.json", _app).exclude(path_regex="^/recipes")


@schema.parametrize()
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_api_keeps_its_promises(case: schemathesis.Case) -> None:
    # What OpenAPI cannot say: a prompt must fit the context, the model must be the one served, limits must
    # suit each other; and of messages, what is not used is not looked at.
    excluded = [positive_data_acceptance]
    if case.path in {"/v1/chat/completions", "/tokenize"}:
        excluded.append(negative_data_rejection)
    response = case.call_and_validate(excluded_checks=excluded)
    assert response.status_code < 500
    assert _service.state.phase == "ready"
