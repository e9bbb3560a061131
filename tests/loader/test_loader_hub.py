"""Models of the hub against a local endpoint: pinned, resumed, offline, and refused in one line."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_http import FakeHttp, Reply, fake_http
from fake_hub import COMMIT, REPOSITORY, FakeRevision, fail, publish
from safetensors.torch import save

from tandem.core.errors import DownloadError, ModelNotFoundError, ModelUnsupportedError
from tandem.core.progress import Silent
from tandem.core.settings import Environment, read_environment
from tandem.loader.checkpoint import open_checkpoint
from tandem.loader.hub import HubOptions, ensure_hub_model, reported_by_hub
from tandem.loader.resolve import resolve_model
from tandem.loader.safetensors import SafetensorsSource
from tandem.loader.store import find_stored, list_stored, pull_model, remove_model, verify_model

WEIGHTS = save({"w": torch.arange(200_000, dtype=torch.float32)})
CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"]}).encode()
QUANTIZED = FakeRevision("9" * 40, {"config.json": CONFIG, "model.safetensors": save({"w": torch.ones(3)})})
MAIN = FakeRevision(
    COMMIT,
    {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "tokenizer.json": b"{}",
        "README.md": b"hello",
        "consolidated.safetensors": b"the same weights once more",
        "original/params.json": b"{}",
        "pytorch_model.bin": b"unwanted",
    },
)
FILE_PATH = f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"


@pytest.fixture
def http() -> Iterator[FakeHttp]:
    with fake_http() as fake:
        publish(fake, {"main": MAIN, "4.05bpw": QUANTIZED})
        yield fake


def hub_options(http: FakeHttp, folder: Path, *, offline: bool = False, free: int = 1 << 40) -> HubOptions:
    return HubOptions(folder / "hub", http.url, offline, Silent(), lambda path: free)


def environment(http: FakeHttp, folder: Path) -> Environment:
    return read_environment(
        {
            "HOME": str(folder),
            "HF_ENDPOINT": http.url,
            "HF_HOME": str(folder / "hf"),
            "PIP_CONFIG_FILE": "/dev/null",
        }
    )


def test_weights_and_side_files_arrive_and_the_commit_is_named(http: FakeHttp, tmp_path: Path) -> None:
    model = ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    assert model.revision == COMMIT
    assert {path.name for path in model.folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert SafetensorsSource.open(model.folder).read("w")[-1] == 199_999


def test_a_branch_is_taken_when_named(http: FakeHttp, tmp_path: Path) -> None:
    model = ensure_hub_model(REPOSITORY, "4.05bpw", hub_options(http, tmp_path))
    assert model.revision == "9" * 40


def test_a_cut_connection_is_resumed(http: FakeHttp, tmp_path: Path) -> None:
    http.cuts[FILE_PATH] = [300_000]
    model = ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    assert (model.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert len(http.ranges(FILE_PATH)) == 2


def test_an_interrupted_download_is_refused_offline_and_finished_by_the_next_run(
    http: FakeHttp, tmp_path: Path
) -> None:
    http.pages[FILE_PATH] = lambda query: Reply(b"", 403)
    with pytest.raises(DownloadError):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    offline = hub_options(http, tmp_path, offline=True)
    with pytest.raises((DownloadError, ModelNotFoundError)):
        open_checkpoint(ensure_hub_model(REPOSITORY, None, offline).folder)
    del http.pages[FILE_PATH]
    model = ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    assert (model.folder / "model.safetensors").read_bytes() == WEIGHTS


def test_offline_takes_what_is_cached_and_refuses_the_rest(http: FakeHttp, tmp_path: Path) -> None:
    offline = hub_options(http, tmp_path, offline=True)
    with pytest.raises(
        DownloadError, match=r"is not on this machine and offline mode is set.*tandem models pull"
    ):
        ensure_hub_model(REPOSITORY, None, offline)
    assert http.requests == []
    online = ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    asked = len(http.requests)
    assert ensure_hub_model(REPOSITORY, None, offline) == online
    assert len(http.requests) == asked


def test_without_a_network_the_cache_serves(http: FakeHttp, tmp_path: Path) -> None:
    online = ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))
    gone = HubOptions(tmp_path / "hub", "http://127.0.0.1:9", False, Silent())
    assert ensure_hub_model(REPOSITORY, None, gone) == online
    with pytest.raises(
        DownloadError, match=r"cannot be reached at http://127\.0\.0\.1:9;.*refused"
    ) as caught:
        ensure_hub_model("tiny-org/other", None, gone)
    assert "\n" not in str(caught.value)


def test_a_name_that_can_be_none_is_said(http: FakeHttp, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"a--b/c is no name of the hub"):
        ensure_hub_model("a--b/c", None, hub_options(http, tmp_path))


@pytest.mark.parametrize("answer", [b"<html>please log in</html>", b"[]", b"{}"])
def test_what_is_no_hub_is_said(http: FakeHttp, tmp_path: Path, answer: bytes) -> None:
    """A login page or a proxy that answers in the hub's place."""
    http.pages[f"/api/models/{REPOSITORY}/revision/main"] = lambda query: Reply(answer)
    with pytest.raises(DownloadError, match=r"does not answer as a hub does.*HF_ENDPOINT"):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))


def test_main_without_weights_lists_the_branches(http: FakeHttp, tmp_path: Path) -> None:
    publish(http, {"main": FakeRevision(COMMIT, {"README.md": b"see the branches"}), "4.05bpw": QUANTIZED})
    with pytest.raises(ModelNotFoundError, match=r"main holds no weights.*@BRANCH with a branch of 4\.05bpw"):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))


def test_a_repository_of_gguf_files_lists_them(http: FakeHttp, tmp_path: Path) -> None:
    publish(http, {"main": FakeRevision(COMMIT, {"tiny.Q4_0.gguf": b"GGUF", "tiny.Q8_0.gguf": b"GGUF"})})
    with pytest.raises(ModelUnsupportedError, match=r"found: tiny\.Q4_0\.gguf, tiny\.Q8_0\.gguf"):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))


def test_an_unknown_revision_lists_the_branches(http: FakeHttp, tmp_path: Path) -> None:
    missing = Reply(b"{}", 404, {"X-Error-Code": "RevisionNotFound"})
    http.pages[f"/api/models/{REPOSITORY}/revision/5bpw"] = lambda query: missing
    with pytest.raises(ModelNotFoundError, match=r"no revision 5bpw; found: branches main, 4\.05bpw"):
        ensure_hub_model(REPOSITORY, "5bpw", hub_options(http, tmp_path))


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", ModelNotFoundError, f"The hub has no model {REPOSITORY}"),
        (401, "RepoNotFound", ModelNotFoundError, f"The hub has no model {REPOSITORY}"),
        (403, "GatedRepo", DownloadError, "is gated"),
        (500, "Oops", DownloadError, "HTTP status 500"),
    ],
)
def test_the_hubs_refusals_are_explained(
    http: FakeHttp, tmp_path: Path, status: int, code: str, error: type[Exception], message: str
) -> None:
    fail(http, status, code)
    with pytest.raises(error, match=message):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path))


def test_too_little_disk_is_said_before_the_download(http: FakeHttp, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"needs .* found: 1\.00 KiB free"):
        ensure_hub_model(REPOSITORY, None, hub_options(http, tmp_path, free=1024))
    assert http.ranges(FILE_PATH) == []


def test_pulled_models_are_listed_verified_and_removed(http: FakeHttp, tmp_path: Path) -> None:
    env = environment(http, tmp_path)
    assert list_stored(env) == []
    location = pull_model(f"{REPOSITORY}@main", env, Silent())
    assert location.origin == f"hub {REPOSITORY}@{COMMIT[:12]}"
    pull_model(f"{REPOSITORY}@4.05bpw", env, Silent())
    first, second = list_stored(env)
    assert (first.name, first.state, first.refs) == (f"{REPOSITORY}@{COMMIT[:12]}", "complete", ("main",))
    assert [model.name for model in find_stored(REPOSITORY, env)] == [first.name, second.name]
    assert find_stored(f"{REPOSITORY}@4.05bpw", env) == [second]

    report = verify_model(f"{REPOSITORY}@main", env, Silent())
    assert (report.files, report.hashed_files, report.size_bytes) == (3, 1, len(WEIGHTS))

    remove_model(f"{REPOSITORY}@4.05bpw", env)
    assert [model.name for model in list_stored(env)] == [first.name]
    remove_model(REPOSITORY, env)
    assert list_stored(env) == []
    with pytest.raises(ModelNotFoundError, match=r"is not on this machine; found: no models"):
        find_stored(REPOSITORY, env)


def test_a_flipped_bit_and_a_cut_file_are_found(http: FakeHttp, tmp_path: Path) -> None:
    env = environment(http, tmp_path)
    folder = pull_model(REPOSITORY, env, Silent()).path
    blob = (folder / "model.safetensors").resolve()
    data = bytearray(WEIGHTS)
    data[-1] ^= 1
    blob.write_bytes(data)
    assert list_stored(env)[0].state == "complete"
    with pytest.raises(Exception, match=r"is not the published file"):
        verify_model(REPOSITORY, env, Silent())
    blob.write_bytes(WEIGHTS[:-1])
    assert list_stored(env)[0].state == "damaged"
    with pytest.raises(Exception, match=r"is cut short"):
        verify_model(REPOSITORY, env, Silent())


def test_resolve_takes_hub_names(http: FakeHttp, tmp_path: Path) -> None:
    location = resolve_model(f"{REPOSITORY}@main", environment(http, tmp_path), Silent())
    assert (location.kind, location.name) == ("folder", "tiny-model")


class Recorder:
    """A ProgressSink that keeps the books."""

    def __init__(self) -> None:
        self.total = self.done = self.finished = 0

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        self.total, self.done = total_bytes, done_bytes

    def advance(self, count_bytes: int) -> None:
        self.done += count_bytes

    def finish(self) -> None:
        self.finished += 1


def test_progress_adds_up_to_the_files_wanted(http: FakeHttp, tmp_path: Path) -> None:
    progress = Recorder()
    ensure_hub_model(REPOSITORY, None, HubOptions(tmp_path / "hub", http.url, False, progress))
    assert progress.total == len(CONFIG) + len(WEIGHTS) + len(b"{}")
    assert (progress.done, progress.finished) == (progress.total, 1)


def test_a_full_disk_midway_is_a_clean_error() -> None:
    from huggingface_hub import HfApi

    with (
        pytest.raises(DownloadError, match=r"The disk is full while downloading a/b@main.*again to resume"),
        reported_by_hub("a/b", "main", HfApi()),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
