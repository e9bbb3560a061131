"""Pages, JSON and files over HTTP: they agree, answer errors clearly, and keep hostile text inert."""

from __future__ import annotations

import csv
import datetime as dt
import html
import io
import json
import re
from urllib.parse import urlsplit

import pytest
import yaml
from recipes_site import ByTokens, client

from tandem.recipes.build import rebuild_store
from tandem.recipes.catalogue import Catalogue
from tandem.recipes.store import Store
from tandem.recipes.synthetic import synthetic_models, synthetic_recipes

TODAY = dt.date(2026, 11, 1)
MAIN = "glm53-flash-2x64-layer-split"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}"


@pytest.fixture(scope="module")
def shipped():
    return client(Catalogue(None, today=TODAY, calculator=ByTokens()))


@pytest.fixture(scope="module")
def made_up():
    store = Store(None)
    rebuild_store(store, synthetic_recipes(300, 3), synthetic_models(40), (), TODAY.toordinal(), "fixed")
    return client(Catalogue(None, store=store, today=TODAY, calculator=ByTokens()))


FACET = re.compile(
    r'<a href="(?P<link>[^"]*)"[^>]*?(?P<chosen>aria-current="true")?\s*class="[^"]*">'
    r'<span class="label">(?P<label>.*?)</span><span class="count">(?P<count>[\d,]+)</span>'
)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "engine=vllm&engine=exllamav3",
        "cards=2..=4&kv=q8",
        "decode_tps=20..&decode.class=hard",
        "quant_repo=~other&top=5",
        "unlock=~none&possible=1",
        "grain=measurement&metric=decode",
        "grain=profile&slots=1..3&strict=1",
        "hw=2x64gib&fits=fits",
        "q=recipe 1&sort=-tested_on",
        "find.quant_repo=ORG1",
    ],
)
def test_page_and_json_agree(made_up, query):
    page = made_up.get(f"/recipes?{query}")
    data = made_up.get(f"/recipes.json?{query}").json()
    assert page.status_code == 200
    shown = [
        (html.unescape(match["label"]), int(match["count"].replace(",", "")), bool(match["chosen"]))
        for match in FACET.finditer(page.text)
    ]
    told = [
        (value["label"], value["count"], value["selected"])
        for facet in data["facets"]
        if facet["distinct"] or any(value["selected"] for value in facet["values"])
        for value in facet["values"]
    ]
    assert shown == told
    assert f"<strong>{data['total']:,}</strong> of {data['records']:,}" in page.text


def test_following_a_toggle_gives_what_its_count_said(made_up):
    data = made_up.get("/recipes.json?engine=vllm").json()
    for facet in data["facets"]:
        for value in facet["values"][:3]:
            answer = made_up.get(value["toggle_url"])
            assert answer.status_code == 200
            if facet["key"] != "engine":
                assert answer.json()["total"] == value["count"], (facet["key"], value)
            assert answer.json()["canonical_url"] == value["toggle_url"]


def test_pages_lead_to_each_other(made_up):
    seen, link = [], "/recipes.json?limit=41&sort=-decode_tps"
    while link is not None:
        data = made_up.get(link).json()
        seen += [row["id"] for row in data["rows"]]
        link = data["next"]
    assert len(seen) == len(set(seen)) == 300
    page = made_up.get("/recipes?limit=41").text
    after = html.unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])
    assert 'rel="prev"' in made_up.get(after).text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/recipes?foo=1", 400, "foo: no such filter"),
        ("/recipes?cards=5..2", 400, "the range"),
        ("/recipes?engine=llama", 400, "not one of its values"),
        ("/recipes?cursor=zzz", 400, "not made by this catalogue"),
        ("/recipes?fits=fits", 400, "which cards"),
        ("/recipes/nothing", 404, "No recipe “nothing”"),
        ("/recipes/glm53-flash-2x64", 404, f'href="/recipes/{MAIN}"'),
        (f"/recipes/{MAIN}?page=2", 400, "no such parameter"),
        (f"/recipes/{MAIN}?hw=lots", 400, "names no cards"),
        ("/recipes/-/compare?id=nothing&id=other", 404, "No recipe"),
        (f"/recipes/-/compare?id={MAIN}&id={MAIN}&id={MAIN}", 400, "two recipes can be compared"),
        ("/recipes/-/scatter?class=poetry", 400, "no number states"),
        ("/recipes/-/scatter?foo=1", 400, "no such filter"),
    ],
)
def test_mistakes_are_pages_that_say_what_is_wrong(shipped, path, status, said):
    answer = shipped.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert said in html.unescape(answer.text) or said in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/recipes.json?foo=1", 400, "foo"),
        ("/recipes.json?cards=x", 400, "cards"),
        ("/recipes/nothing.json", 404, "recipe_id"),
        (f"/recipes/{MAIN}.json?foo=1", 400, "foo"),
        ("/recipes/-/facets/foo.json", 404, "key"),
        ("/recipes/-/facets/metric.json", 404, "key"),
        ("/recipes/-/facets/fits.json", 404, "key"),
        ("/recipes.csv?foo=1", 400, "foo"),
        ("/recipes/nothing.yaml", 404, "recipe_id"),
    ],
)
def test_mistakes_are_error_objects_to_programs(shipped, path, status, param):
    answer = shipped.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"]


def test_aliases_redirect(shipped):
    answer = shipped.get("/recipes", params={"model": "GLM 5.3 Flash", "cards.min": "2"})
    assert answer.status_code == 307
    assert answer.headers["location"] == "/recipes?cards=2..&model=glm-5.3-flash"
    answer = shipped.get("/recipes.json", params={"fits": "2x64gib"})
    assert answer.headers["location"] == "/recipes.json?fits=fits&hw=2x64gib"


@pytest.mark.parametrize(
    "path",
    ["/recipes", "/recipes.json?engine=vllm", f"/recipes/{MAIN}", f"/recipes/{MAIN}.json", "/recipes.csv"],
)
def test_etags(shipped, path):
    first = shipped.get(path)
    again = shipped.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert shipped.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_an_etag_changes_with_the_query_and_the_cards(shipped):
    paths = [
        "/recipes",
        "/recipes?engine=vllm",
        "/recipes.json",
        f"/recipes/{MAIN}",
        f"/recipes/{MAIN}?hw=2x64gib",
    ]
    assert len({shipped.get(path).headers["etag"] for path in paths}) == len(paths)


@pytest.mark.parametrize("key", ["q", "model", "quant_repo", "unlock", "tested_by", "find.model"])
@pytest.mark.parametrize(
    "text", [HOSTILE, "' OR 1=1 --", "=cmd|'/c calc'!A1", "../../etc/passwd", "\u202e\x00", "%s%n"]
)
def test_hostile_filters_stay_text(shipped, key, text):
    answer = shipped.get("/recipes", params={key: text})
    assert answer.status_code in (200, 307)
    assert "<script>alert" not in answer.text
    assert "<img src=x" not in answer.text
    assert ">49<" not in answer.text
    assert shipped.get("/recipes.json").json()["total"] == 5


def test_hostile_recipes_stay_text(tmp_path):
    (tmp_path / "recipes").mkdir()
    quoted = json.dumps(HOSTILE)
    (tmp_path / "recipes" / "hostile.yaml").write_text(
        f"""\
schema_version: 1
id: hostile
title: {quoted}
revision: 1
summary: {quoted}
model: glm-5.3-flash
model_label: {quoted}
quant: {{label: {quoted}, repo: {quoted}, licence: "=1+1"}}
engine: {{label: {quoted}, version: {quoted}}}
hardware: {{card: {quoted}, count: 2, driver: {quoted}, unlock: "a\\nb\\tc"}}
topology: {{label: {quoted}, layout: tp}}
profiles: [{{name: only, default: true, notes: {quoted}, flags: [{quoted}]}}]
measurements:
- {{id: m, metric: decode, value: 5, unit: tok/s, by: {quoted}, note: {quoted}, source: s,
   deviations: [{quoted}]}}
headline: m
steps: [{{title: {quoted}, command: {quoted}}}]
issues: [{{text: {quoted}}}]
confirmations: [{{by: {quoted}, date: "2026-10-01", note: {quoted}}}]
sources: [{{id: s, type: page, title: {quoted}, url: "https://example.org/%22%3E", author: {quoted}}}]
"""
    )
    site = client(Catalogue(tmp_path, today=TODAY, calculator=ByTokens()))
    pages = [
        "/recipes",
        "/recipes/hostile",
        "/recipes/hostile?hw=2x64gib",
        f"/recipes/-/compare?id=hostile&id={MAIN}",
        "/recipes/-/models",
        "/recipes/-/scatter",
        "/recipes?grain=measurement",
        "/recipes?grain=profile",
    ]
    for path in pages:
        answer = site.get(path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text, path
        assert "<img src=x" not in answer.text, path
        assert "onerror=alert(1)>" not in answer.text, path
    for facet in site.get("/recipes.json").json()["facets"]:
        for value in facet["values"]:
            assert site.get(value["toggle_url"]).status_code == 200, value
    row = next(
        row for row in csv.DictReader(io.StringIO(site.get("/recipes.csv").text)) if row["id"] == "hostile"
    )
    assert row["licence"] == "'=1+1"
    assert yaml.safe_load(site.get("/recipes/hostile.yaml").text)["title"] == HOSTILE
    assert yaml.safe_load(site.get("/recipes/hostile.cff").text)["title"] == HOSTILE


def test_a_broken_file_is_told_on_the_page_and_hides_nothing(tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "bad.yaml").write_text("schema_version: 1\nid: bad\ntitle: 5\n")
    page = html.unescape(client(Catalogue(tmp_path, today=TODAY)).get("/recipes").text)
    assert "bad.yaml:3: title: 5 is read as a number" in page
    assert "5</strong> of 5" in page


def test_the_recipes_page_has_all_of_the_seed_page(shipped):
    page = html.unescape(shipped.get(f"/recipes/{MAIN}").text)
    for text in (
        "Quant", "EXL3 3.05 bpw: turboderp/GLM-5.3-Flash-exl3", "Topology", "392,960 (profile q8_384k)",
        "about 60 tok/s", "about 58 GiB of 64 GiB (116.6 GiB resident across both)", "-gs 62,63", "@68x0",
        "@nestaa51", "Prerequisites", "scripts/serve.sh --profile q8_384k", "332ab457", "bf582e4e", "q8_fast",
        "448K context", "What makes it work", "Measured numbers", "28.49 s", "three cards, tensor parallel",
        "Known issues", "Related", "Sources", "The source calls it Proven", "not pinned",
    ):  # fmt: skip
        assert text in page, text
    assert 'href="#number-decode-68x0"' in page
    assert 'id="number-decode-68x0"' in page


def test_every_link_within_the_site_leads_somewhere(shipped):
    seen, queue = (
        set(),
        ["/recipes", f"/recipes/{MAIN}?hw=2x64gib", "/recipes/-/compare", "/recipes/-/scatter"],
    )
    while queue and len(seen) < 150:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = shipped.get(path)
        assert answer.status_code == 200, path
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        links = [html.unescape(link) for link in re.findall(r'(?:href|src)="([^"]+)"', answer.text)]
        for link in links:
            address = urlsplit(link)
            if address.fragment and not address.path:
                assert f'id="{address.fragment}"' in answer.text, (path, link)
            elif not address.netloc and address.path:
                queue.append(link.partition("#")[0])


def test_bars_and_terms_are_drawn_when_cards_are_named(shipped):
    page = shipped.get(f"/recipes/{MAIN}?hw=2x64gib").text
    assert page.count('class="bar"') == 2 * 6
    assert "does not fit" in page
    assert "Would help: a smaller cache" in page
    assert 'class="bar"' not in shipped.get(f"/recipes/{MAIN}").text


def test_answers_carry_their_protection(shipped):
    for path in ("/recipes", f"/recipes/{MAIN}", "/recipes.json", "/recipes?foo=1"):
        headers = shipped.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    page = shipped.get("/recipes").text + shipped.get(f"/recipes/{MAIN}?hw=2x64gib").text
    assert " style=" not in page
    assert "onclick" not in page
    assert "<script>" not in page


def test_static_files(shipped):
    assert shipped.get("/recipes/-/static/recipes.css").headers["content-type"].startswith("text/css")
    assert shipped.get("/recipes/-/static/routes.py").status_code == 404
    assert shipped.get("/recipes/-/static/..%2froutes.py").status_code == 404
    assert shipped.get("/").headers["location"] == "/recipes"


def test_a_scatter_is_of_one_kind_of_text(shipped):
    page = html.unescape(shipped.get("/recipes/-/scatter?class=hard").text)
    assert page.count("<circle class") == 2
    assert "34.2 tok/s" in page
    assert "96.2 tok/s" not in page
    assert "<circle class" not in shipped.get("/recipes/-/scatter?class=hard&cards=4").text
