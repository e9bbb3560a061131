"""Memory that a load leaves behind is given back, and nothing that is needed with it."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

import pytest

from tandem.core.process import release_free_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
_SIZE = 4 * 2**20


def _resident_kib(path: Path) -> int:
    """Resident part of all mappings of a file."""
    text = Path("/proc/self/smaps").read_text()
    return sum(int(size) for size in re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", text))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pages.bin"
    path.write_bytes(bytes(range(256)) * (_SIZE // 256))
    return path


def test_clean_pages_of_files_are_given_back_and_come_again(file: Path) -> None:
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert sum(mapped[::4096]) == 0
    assert _resident_kib(file) >= _SIZE // 1024
    release_free_memory()
    assert _resident_kib(file) == 0
    assert mapped[:] == file.read_bytes()


def test_changed_pages_stay(file: Path) -> None:
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapped[5000:5004] = b"kept"
    release_free_memory()
    assert mapped[5000:5004] == b"kept"


def test_changed_pages_of_a_mapping_that_became_read_only_stay(file: Path) -> None:
    """As the loader's tables of addresses: relocated, then protected."""
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    mapped[5000:5004] = b"kept"
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_SIZE), mmap.PROT_READ) == 0
    release_free_memory()
    assert ctypes.string_at(address + 5000, 4) == b"kept"
