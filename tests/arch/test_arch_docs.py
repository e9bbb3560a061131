"""Generated pages are fresh, and every environment variable that is read is documented."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tandem.core.settings import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("cli.md", "settings.md")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_fresh(generator: ModuleType, name: str) -> None:
    path = ROOT / "docs" / name
    assert path.read_text() == generator.pages()[path], "stale: run scripts/generate_docs.py"


def test_every_variable_that_is_read_is_documented_and_the_other_way_round() -> None:
    text = "".join((ROOT / "src/tandem/core" / name).read_text() for name in ("settings.py", "pip_config.py"))
    read = set(re.findall(r'env\.get\("([A-Z_]+)"', text)) | set(
        re.findall(r'"((?:UV|PIP|SSL|REQUESTS)_[A-Z_]+)"', text)
    )
    assert read == set(VARIABLES)


def test_every_command_teaches_by_example(generator: ModuleType) -> None:
    for section in generator.cli_page().split("\n## ")[1:]:
        name = section.partition("\n")[0]
        assert name in section.partition("```sh\n")[2], f"{name} shows no example"
