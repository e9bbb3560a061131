"""``tandem doctor``: works without a GPU, names what is missing, and fails only on real problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_outcome import Tandem

from tandem.cli.doctor import Finding, examine
from tandem.cli.facts import GpuFacts, GpuReport, gpu_report, machine_facts
from tandem.core.plan import GIB
from tandem.core.settings import Environment, read_environment

NO_GPU = GpuReport(None)
TWO_CARDS = GpuReport(
    "580.10",
    (
        GpuFacts(0, "Card A", 64 * GIB, 63 * GIB, "Gen2 x8 (at most Gen4 x16)", (1,)),
        GpuFacts(1, "Card B", 64 * GIB, 10 * GIB, "unknown", ()),
    ),
)


def environment(folder: Path, **variables: str) -> Environment:
    return read_environment({"HOME": str(folder), "PIP_CONFIG_FILE": "/dev/null", **variables})


def findings(environment: Environment, gpus: GpuReport = NO_GPU) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(environment, gpus)}


def test_a_machine_without_gpu_is_fine(tandem: Tandem) -> None:
    outcome = tandem("doctor")
    assert outcome.code == 0
    assert "torch" in outcome.out


def test_json_has_machine_and_findings(tandem: Tandem) -> None:
    report = json.loads(tandem("doctor", "--json").out)
    assert report["machine"]["processors"] >= 1
    assert report["machine"]["versions"]["torch"]
    assert {"python", "memory", "torch", "cache", "demo model"} <= {f["subject"] for f in report["findings"]}
    assert all(f["state"] in ("ok", "note", "problem") for f in report["findings"])


def test_cards_are_described(tmp_path: Path) -> None:
    found = findings(environment(tmp_path), TWO_CARDS)
    assert found["driver"].detail == "580.10"
    assert found["cuda:0"].detail == (
        "Card A, 63.00 GiB of 64.00 GiB free, PCIe Gen2 x8 (at most Gen4 x16), peer access to cuda:1"
    )
    assert found["cuda:1"].detail.endswith("PCIe unknown, peer access to none")


def test_a_driver_that_does_not_answer_is_a_problem(tmp_path: Path) -> None:
    found = findings(environment(tmp_path), GpuReport(None, (), "the driver does not answer: mismatch"))
    assert found["driver"].state == "problem"
    assert found["driver"].remedy


def test_a_cache_folder_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = findings(environment(tmp_path, TANDEM_CACHE_DIR=str(tmp_path / "file" / "cache")))
    assert found["cache"].state == "problem"
    assert found["data"].state == "ok"


def test_problems_set_the_exit_code(tandem: Tandem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    outcome = tandem("doctor")
    assert outcome.code == 1
    assert "is not a folder" in " ".join(outcome.out.split())


def test_offline_and_index_are_told_without_passwords(tmp_path: Path) -> None:
    assert findings(environment(tmp_path, TANDEM_OFFLINE="1"))["network"].state == "note"
    network = findings(environment(tmp_path, PIP_INDEX_URL="https://me:secret@mirror/simple"))["network"]
    assert network.detail == "package index https://mirror/simple (PIP_INDEX_URL)"


def test_a_record_of_the_machine_is_plain_data() -> None:
    facts = machine_facts()
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.gpu
def test_the_driver_is_asked_on_a_machine_with_cards() -> None:
    report = gpu_report()
    assert report.driver
    assert report.trouble is None
    for card in report.cards:
        assert 0 < card.free_bytes <= card.total_bytes
        assert card.link.startswith("Gen")
        assert card.index not in card.peers
