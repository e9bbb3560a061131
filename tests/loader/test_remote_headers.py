"""Planning a hub model reads its headers by range requests and stores nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_http import FakeHttp, Reply, fake_http
from fake_hub import COMMIT, REPOSITORY, FakeRevision, fail, publish
from safetensors.torch import save

from tandem.core.errors import DownloadError, ModelDamagedError, ModelNotFoundError
from tandem.core.progress import Silent
from tandem.loader.base import TensorHeader
from tandem.loader.hub import HubModel, HubOptions, ensure_hub_model
from tandem.loader.remote_headers import RemoteHeaders, read_hub_headers

CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()
FIRST = save({"big": torch.zeros(300_000), "half": torch.zeros(3, 5, dtype=torch.float16)})
SECOND = save({f"layer.{i}.a_rather_long_name": torch.zeros(1) for i in range(2_000)})
FILES = {
    "config.json": CONFIG,
    "model-00001-of-00002.safetensors": FIRST,
    "model-00002-of-00002.safetensors": SECOND,
}


@pytest.fixture
def http() -> Iterator[FakeHttp]:
    with fake_http() as fake:
        publish(fake, {"main": FakeRevision(COMMIT, FILES)})
        yield fake


def options(http: FakeHttp, folder: Path, *, offline: bool = False) -> HubOptions:
    return HubOptions(folder / "hub", http.url, offline, Silent(), lambda path: 1 << 40)


def test_headers_come_by_ranges_and_nothing_is_stored(http: FakeHttp, tmp_path: Path) -> None:
    found = read_hub_headers(REPOSITORY, None, options(http, tmp_path))
    assert isinstance(found, RemoteHeaders)
    assert found.revision == COMMIT
    assert found.config == json.loads(CONFIG)
    assert found.headers["big"] == TensorHeader("big", "F32", (300_000,), 1_200_000)
    assert found.headers["half"] == TensorHeader("half", "F16", (3, 5), 30)
    assert len(found.headers) == 2_002
    assert not (tmp_path / "hub").exists()
    weights = [asked for method, path, asked in http.requests if path.endswith(".safetensors")]
    assert len(weights) == 3  # the second header is longer than the first request reaches
    assert all(asked and not asked.endswith("-") for asked in weights)


def test_offline_takes_the_cached_copy_or_says_how_to_get_one(http: FakeHttp, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="models pull"):
        read_hub_headers(REPOSITORY, None, options(http, tmp_path, offline=True))
    assert http.requests == []
    ensure_hub_model(REPOSITORY, None, options(http, tmp_path))
    asked = len(http.requests)
    found = read_hub_headers(REPOSITORY, None, options(http, tmp_path, offline=True))
    assert isinstance(found, HubModel)
    assert len(http.requests) == asked


def test_what_is_not_there_is_named(http: FakeHttp, tmp_path: Path) -> None:
    fail(http, 404, "RevisionNotFound")
    api = f"/api/models/{REPOSITORY}/revision"
    http.pages[f"{api}/nope"] = http.pages[f"{api}/main"]
    with pytest.raises(ModelNotFoundError, match="no revision nope"):
        read_hub_headers(REPOSITORY, "nope", options(http, tmp_path))
    fail(http, 404, "RepoNotFound")
    with pytest.raises(ModelNotFoundError, match="no model"):
        read_hub_headers(REPOSITORY, None, options(http, tmp_path))
    fail(http, 403, "GatedRepo")
    with pytest.raises(DownloadError, match="gated"):
        read_hub_headers(REPOSITORY, None, options(http, tmp_path))


def test_a_damaged_header_is_named(http: FakeHttp, tmp_path: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    http.files[f"/{REPOSITORY}/resolve/{COMMIT}/{name}"] = Reply(b'\x09\0\0\0\0\0\0\0{"w": tru')
    with pytest.raises(ModelDamagedError, match=name):
        read_hub_headers(REPOSITORY, None, options(http, tmp_path))
