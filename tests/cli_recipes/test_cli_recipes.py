"""``tandem recipes``: agrees with the web, exits with the promised codes, never shows a traceback."""

from __future__ import annotations

import csv
import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
import yaml
from starlette.testclient import TestClient

from tandem.api.fit import PlannerFit
from tandem.core.settings import read_environment
from tandem.recipes.catalogue import Catalogue
from tandem.server.recipes_web.routes import recipes_app

MAIN = "glm53-flash-2x64-layer-split"
OWN = """\
schema_version: 1
id: own
title: My own
revision: 1
revised: "2026-09-01"
summary: A recipe of my own.
model: glm-5.3-flash
quant: {scheme: exl3, revision: "abc"}
engine: {name: exllamav3, version: 1.5.4, commit: def}
hardware: {card: CMP 170HX, count: 2}
topology: {layout: layer_split, degree: 2}
profiles: [{name: only, default: true}]
steps: [{title: Serve}]
tested: [{by: me, date: "2026-09-02"}]
sources: [{id: here, type: page, title: Here}]
"""


@pytest.mark.parametrize(
    "filters",
    [
        [],
        ["cards=2..=3", "kv=q8"],
        ["engine=vllm", "engine=tandem"],
        ["decode_tps=50..", "decode.class=easy"],
        ["unlock=~none"],
        ["model=GLM 5.3 Flash"],
    ],
)
def test_the_list_is_the_webs(recipes, filters):
    said = recipes("ls", *filters, "--json")
    web = TestClient(recipes_app(Catalogue(None, calculator=PlannerFit())))
    pairs = [tuple(text.split("=", 1)) for text in filters]
    told = web.get(f"/recipes.json?{urlencode(pairs)}").json()
    assert said.code == 0
    assert json.loads(said.out) == told
    table = recipes("ls", *filters)
    assert all(row["id"] in table.out for row in told["rows"])
    assert f"{told['total']} of {told['total']}" in table.out


def test_facets(recipes):
    web = TestClient(recipes_app(Catalogue(None)))
    said = json.loads(recipes("facets", "engine", "cards=2..", "--json").out)
    assert said == web.get("/recipes/-/facets/engine.json?cards=2..").json()
    assert "exllamav3" in recipes("facets", "engine").out
    assert "decode_tps" in recipes("facets").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "foo=1"], "foo: no such filter"),
        (["ls", "cards=5..2"], "cards: the range '5..2' is empty"),
        (["ls", "engine"], "a filter is KEY=VALUE"),
        (["ls", "fits=fits"], "which cards?"),
        (["ls", "--grain", "page"], "grain:"),
        (["facets", "colour"], "colour"),
        (["show", "glm53-flash-2x64"], MAIN),
        (["show", MAIN, "--profile", "q9"], "q8_320k"),
        (["diff", MAIN, "nothing"], "No recipe 'nothing'"),
        (["export", "--format", "xml"], "csv-numbers"),
        (["fit", MAIN], "--hw 2x64GiB"),
        (["fit", "--hw", "2x64GiB"], "--all"),
        (["fit", MAIN, "--hw", "lots"], "names no cards"),
        (["fit", MAIN, "--hw", "2x64GiB", "--profile", "q9"], "No profile 'q9'"),
        (["add", "/nothing.yaml"], "No file"),
        (["lint", "/nothing.yaml"], "No file"),
        (["confirm", MAIN, "--by", "me", "--outcome", "perfect"], "--outcome"),
        (["confirm", MAIN, "--by", "me", "--outcome", "serves", "--date", "soon"], "--date"),
        (["confirm", "nothing", "--by", "me", "--outcome", "serves"], "No recipe"),
        (["confirm", MAIN, "--by", "me", "--outcome", "serves", "--profile", "q9"], "No profile"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(recipes, arguments, said):
    ran = recipes(*arguments)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([MAIN, "--hw", "2x64GiB"], 0),
        ([MAIN, "--hw", "2x64GiB", "--profile", "q8_1m"], 0),
        ([MAIN, "--hw", "2x64GiB", "--profile", "mtp"], 3),
        ([MAIN, "--hw", "2x48GiB"], 4),
        (["glm53-flash-4x64", "--hw", "4x64GiB"], 5),
        (["--all", "--hw", "2x64GiB"], 0),
        (["--all", "--hw", "1x1GiB"], 4),
    ],
)
def test_fit_exits_with_its_verdict(recipes, arguments, code):
    assert recipes("fit", *arguments).code == code
    ran = recipes("fit", *arguments, "--json")
    assert ran.code == code
    verdicts = {row["verdict"] for row in json.loads(ran.out)}
    assert {0: "fits", 3: "marginal", 4: "no", 5: "unknown"}[code] in verdicts


def test_fit_takes_other_settings(recipes):
    assert recipes("fit", MAIN, "--hw", "2x64GiB", "--ctx", "512k").code == 4
    assert recipes("fit", MAIN, "--hw", "2x64GiB", "--profile", "q8_1m", "--kv", "fp16").code != 0


def test_show(recipes):
    ran = recipes("show", MAIN, "--evidence")
    for text in (
        "Reported (the source says proven)",
        "q8_320k",
        "changed: without DFlash2",
        "missing for Proven",
    ):
        assert text in ran.out
    assert json.loads(recipes("show", MAIN, "--json").out)["recipe"]["id"] == MAIN
    printed = recipes("show", MAIN, "--profile", "q8_384k").out
    assert "cache_format   = q8  (profile q8_384k)" in printed
    told = json.loads(recipes("show", MAIN, "--profile", "q8_1m", "--json").out)
    assert told["context_tokens"] == {"value": 1048320, "source": "profile q8_1m"}


def test_a_variable_sets_a_value_and_an_unknown_one_is_an_error(recipes, monkeypatch):
    monkeypatch.setenv("TANDEM_SERVE_PORT", "9009")
    assert "port           = 9009  (TANDEM_SERVE_PORT)" in recipes("show", MAIN, "--profile", "q8_384k").out
    monkeypatch.setenv("TANDEM_SERVE_PROT", "9009")
    ran = recipes("show", MAIN, "--profile", "q8_384k")
    assert ran.code == 2
    assert "prot" in ran.err


def test_diff(recipes):
    rows = json.loads(recipes("diff", MAIN, "glm53-flash-2x64-tp2", "--json").out)
    assert {"section", "label", MAIN, "glm53-flash-2x64-tp2"} == set(rows[0])
    assert all(row[MAIN] != row["glm53-flash-2x64-tp2"] for row in rows)
    assert "host memory" in recipes("diff", MAIN, "glm53-flash-2x64-tp2").out


def test_adding_confirming_and_linting(recipes, tmp_path: Path):
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    assert recipes("lint", str(file)).code == 0
    assert recipes("add", str(file)).out == "own\n"
    assert recipes("add", str(file)).code == 2
    assert "reported" in recipes("ls", "origin=user").out
    confirm = ("confirm", "own", "--by", "other", "--outcome", "serves", "--profile", "only", "--cards", "2")
    path = Path(recipes(*confirm, "--card", "CMP 170HX").out.strip())
    assert yaml.safe_load(path.read_text())["confirmation"]["revision"] == 1
    assert path.is_relative_to(read_environment().data_dir)
    assert "own" in recipes("ls", "status=proven").out
    assert recipes("lint").code == 0
    assert recipes("lint", "--strict").code == 1
    file.write_text(OWN.replace("count: 2", "count: two"))
    broken = recipes("lint", str(file))
    assert broken.code == 1
    assert f"{file}:10: error: hardware.count" in broken.out
    assert json.loads(recipes("lint", str(file), "--json").out)[0]["line"] == 10


def test_export(recipes, tmp_path: Path):
    rows = list(csv.DictReader(io.StringIO(recipes("export", "--format", "csv", "engine=vllm").out)))
    assert [row["id"] for row in rows] == ["glm53-flash-3x64", "glm53-flash-4x64"]
    numbers = list(csv.DictReader(io.StringIO(recipes("export", "--format", "csv-numbers").out)))
    assert {row["recipe"] for row in numbers} >= {MAIN}
    out = tmp_path / "all.yaml"
    assert recipes("export", "--format", "yaml", "-o", str(out)).code == 0
    assert next(yaml.safe_load_all(out.read_text()))["id"] == MAIN
    assert len(recipes("export").out.splitlines()) == 5
    assert yaml.safe_load(recipes("export", "--format", "cff", "q=smollm").out)["cff-version"] == "1.2.0"
    assert recipes("export", "-o", str(tmp_path / "no" / "\0")).code != 0


def test_the_pages_are_served_alone():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = "from tandem.cli.entry import main; main()"
    command = [sys.executable, "-c", start, "recipes", "serve", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert "/recipes" in process.stderr.readline()
        answer = httpx.get(f"http://127.0.0.1:{port}/recipes", timeout=30)
        assert answer.status_code == 200
        foreign = httpx.get(f"http://127.0.0.1:{port}/recipes", headers={"Host": "evil.example"}, timeout=10)
        assert foreign.status_code == 403
        busy = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (busy.returncode, "port is in use" in busy.stderr) == (2, True)
    finally:
        process.terminate()
        process.wait(15)
