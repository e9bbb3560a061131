"""The OpenAPI document and the status page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import jsonschema
import pytest
from harness import MODEL, Opens, StubServer

from tandem.api import LoadState, Service
from tandem.server.app import create_app
from tandem.server.config import ServerConfig
from tandem.server.health import HealthMonitor

pytestmark = pytest.mark.anyio


async def test_the_document_describes_the_routes(server: StubServer) -> None:
    document = (await server.client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}", "/tokenize",
        "/detokenize", "/health", "/metrics",
    }  # fmt: skip
    text = str(document)
    schemas = document["components"]["schemas"]
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in schemas
    assert "422" not in text
    assert "HTTPValidationError" not in schemas
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert "200" in operation["responses"], path


async def test_answers_match_the_document(server: StubServer) -> None:
    document = (await server.client.get("/openapi.json")).json()

    def check(name: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(value, schema)

    check("ChatCompletion", (await server.chat(logprobs=True)).json())
    check("Completion", (await server.complete(logprobs=1)).json())
    check("ErrorAnswer", (await server.chat(temperature=9)).json())
    check("ModelList", (await server.client.get("/v1/models")).json())
    check("HealthReport", (await server.client.get("/health")).json())
    check("Tokenized", (await server.client.post("/tokenize", json={"prompt": "a"})).json())
    check("ChatRequest", {"messages": [{"role": "user", "content": "hi"}], "stop": ["a"], "seed": None})
    with pytest.raises(jsonschema.ValidationError):
        check("ChatRequest", {"messages": [], "temperature": 3})


def test_keys_show_in_the_document() -> None:
    app = create_app(Service(MODEL), ServerConfig(api_keys=("k",)))
    assert app.openapi()["security"] == [{"key": []}]


class _Labels(HTMLParser):
    """Collects what a screen reader needs: the fields, and the labels that name them."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: set[str] = set()
        self.labels: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag in {"input", "textarea"}:
            self.fields.add(found["id"])
        if tag == "label":
            self.labels.add(found["for"])
        self.outside += [
            value
            for name, value in found.items()
            if name in {"src", "href"} and value.startswith(("http", "//"))
        ]


@pytest.mark.parametrize("keys", [(), ("k",)])
async def test_the_page_works_offline_and_has_labels(opens: Opens, keys: tuple[str, ...]) -> None:
    async with opens(config=ServerConfig(api_keys=keys)) as server:
        page = await server.client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert MODEL in page.text
        assert "4,096 tokens" in page.text
        parser = _Labels()
        parser.feed(page.text)
        assert parser.fields == parser.labels >= {"prompt", "temperature", "limit"}
        assert ("key" in parser.fields) == bool(keys)
        assert parser.outside == []
        assert "<script>" not in page.text
        assert "style=" not in page.text
        for name, kind in (("status.css", "text/css"), ("status.js", "javascript")):
            assert kind in (await server.client.get(f"/static/{name}")).headers["content-type"]
        for name in ("status.html", "../app.py", "%2e%2e/app.py", "x"):
            assert (await server.client.get(f"/static/{name}")).status_code in {401, 404}


def test_stalled_is_judged_from_the_age_of_the_last_step() -> None:
    service = Service("<b>model</b>")
    service.report(LoadState("loading", 0.5, "<i>"))
    report = HealthMonitor(service, ServerConfig()).report()
    assert (report["status"], report["progress"], report["pages"]["total"]) == ("loading", 0.5, 0)


async def test_health_names_the_served_id(server: StubServer) -> None:
    other = Service("./folder/model.gguf")
    assert HealthMonitor(other, ServerConfig()).report()["model"] == "./folder/model.gguf"
    other.attach(server.service.card, server.service.text, server.service.scheduler)
    assert HealthMonitor(other, ServerConfig()).report()["model"] == MODEL
