"""Gates on the repository itself: file sizes, machine-bound text, pins, scripts, changelog."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400
LONGER_FILES: dict[str, str] = {}
"""Path -> why it may be longer. At most five."""

SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
MACHINE_BOUND = re.compile(r"/work/|/root/|/Users/|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs")


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_source_files_stay_short() -> None:
    sources = [
        path
        for folder in ("src", "tests", "scripts", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".cu", ".cuh"}
    ]
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources
        if (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert long.keys() == LONGER_FILES.keys(), f"over {MAX_LINES} lines: {long}"
    assert len(LONGER_FILES) <= 5


def test_no_file_is_bound_to_one_machine() -> None:
    own = Path(__file__)
    found = []
    for path in tracked_files():
        if path == own or path.suffix not in {
            ".py",
            ".sh",
            ".md",
            ".toml",
            ".txt",
            ".yaml",
            ".cu",
            ".html",
            ".js",
            "",
        }:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_BOUND.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_everything_is_pinned() -> None:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
        assert match, f"not name==version: {line}"
        pins[normalized(match[1])] = match[2]
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["test"], *extras["gpu"]]
    names = {normalized(re.split(r"[<>=\[; ]", requirement)[0]) for requirement in wanted}
    assert names <= pins.keys(), names - pins.keys()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_changelog_has_something_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    unreleased = text.partition("## Unreleased")[2].partition("\n## ")[0]
    assert re.search(r"^- ", unreleased, re.MULTILINE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_executable_strict_and_clean(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    shellcheck = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
