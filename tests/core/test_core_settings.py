"""The environment, read once: flags that switch off, pip's index, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.core.errors import SettingsError
from tandem.core.machine import available_memory_bytes, usable_processors
from tandem.core.pip_config import DEFAULT_INDEX, read_package_index
from tandem.core.settings import parse_flag, read_cuda_capability, read_environment

NO_FILES = {"PIP_CONFIG_FILE": "/dev/null"}


@pytest.mark.parametrize("name", ["TANDEM_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, False) for word in ("", "0", "false", "No", "off")),
        *((word, True) for word in ("1", "YES", "on")),
    ],
)
def test_every_boolean_variable_can_be_switched_off(name: str, text: str, value: bool) -> None:
    assert parse_flag(name, text) is value
    assert read_environment({**NO_FILES, "HOME": "/home/user", name: text}).offline is value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TANDEM_OFFLINE", "maybe"),
        ("HF_HUB_OFFLINE", "2"),
        ("TANDEM_LOG_LEVEL", "loud"),
        ("HF_ENDPOINT", "mirror.example"),
        ("HF_ENDPOINT", "http://:80"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name}.*{value}"):
        read_environment({**NO_FILES, name: value})


def test_an_older_cards_kernels_can_be_asked_for() -> None:
    assert read_cuda_capability({}) is read_cuda_capability({"TANDEM_CUDA_CAPABILITY": " "}) is None
    assert read_cuda_capability({"TANDEM_CUDA_CAPABILITY": "8.6"}) == (8, 6)


@pytest.mark.parametrize("text", ["7.5", "8", "sm_80", "8.x", "9.-1"])
def test_a_capability_is_two_numbers(text: str) -> None:
    with pytest.raises(SettingsError, match=rf"TANDEM_CUDA_CAPABILITY.*{text}"):
        read_cuda_capability({"TANDEM_CUDA_CAPABILITY": text})


def test_folders_and_keys() -> None:
    env = read_environment({**NO_FILES, "HOME": "/home/user", "TANDEM_API_KEY": " a, b ,,"})
    assert env.cache_dir == Path("/home/user/.cache/tandem")
    assert env.data_dir == Path("/home/user/.local/share/tandem")
    assert env.hub_cache_dir == Path("/home/user/.cache/huggingface/hub")
    assert env.api_keys == ("a", "b")
    assert env.hub_endpoint is None
    moved = {"XDG_CACHE_HOME": "/c", "XDG_DATA_HOME": "/d", "HF_HOME": "/h", "HF_ENDPOINT": "http://mirror/"}
    env = read_environment({**NO_FILES, **moved})
    assert (env.cache_dir, env.data_dir) == (Path("/c/tandem"), Path("/d/tandem"))
    assert (env.hub_cache_dir, env.hub_endpoint) == (Path("/h/hub"), "http://mirror")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_public_index_is_the_default(tmp_path: Path) -> None:
    index = read_package_index({"XDG_CONFIG_DIRS": str(tmp_path), **NO_FILES}, tmp_path)
    assert (index.url, index.source, index.ca_bundle) == (DEFAULT_INDEX, "default", None)


def test_pips_files_and_variables_in_pips_order(tmp_path: Path) -> None:
    env: dict[str, str] = {}
    write(
        tmp_path / "etc/xdg/pip/pip.conf", "[global]\nindex-url = http://system/simple/\ncert = /system.pem\n"
    )
    assert read_package_index(env, tmp_path, tmp_path / "etc").url == "http://system/simple"
    user = write(tmp_path / ".config/pip/pip.conf", "[install]\nindex-url = http://user/simple\n")
    index = read_package_index(env, tmp_path, tmp_path / "etc")
    assert (index.url, index.source, index.ca_bundle) == (
        "http://user/simple",
        str(user),
        Path("/system.pem"),
    )
    named = write(tmp_path / "named.conf", "[global]\nindex-url = http://named/simple\n")
    env["PIP_CONFIG_FILE"] = str(named)
    assert read_package_index(env, tmp_path, tmp_path / "etc").url == "http://named/simple"
    env["PIP_INDEX_URL"] = "https://variable/simple"
    env["PIP_CERT"] = "/variable.pem"
    index = read_package_index(env, tmp_path, tmp_path / "etc")
    assert (index.url, index.source) == ("https://variable/simple", "PIP_INDEX_URL")
    assert index.ca_bundle == Path("/variable.pem")


def test_a_broken_file_and_an_impossible_index_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pip.conf", "index-url = before any section\n")
    with pytest.raises(SettingsError, match=r"configuration file .*pip\.conf cannot be read"):
        read_package_index({"PIP_CONFIG_FILE": str(path)}, tmp_path)
    with pytest.raises(SettingsError, match=r"found: 'ftp://x' \(from PIP_INDEX_URL\)"):
        read_package_index({**NO_FILES, "PIP_INDEX_URL": "ftp://x"}, tmp_path)


def fake_root(folder: Path, **files: str) -> Path:
    write(folder / "proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 80 kB\n")
    for name, text in files.items():
        write(folder / "sys/fs/cgroup" / name.replace("_", "."), text)
    return folder


def test_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    assert available_memory_bytes(fake_root(tmp_path / "a")) == 80 * 1024
    assert (
        available_memory_bytes(fake_root(tmp_path / "b", memory_max="max", memory_current="5")) == 80 * 1024
    )
    limited = fake_root(
        tmp_path / "c", memory_max="50000", memory_current="30000", memory_stat="anon 1\ninactive_file 7000\n"
    )
    assert available_memory_bytes(limited) == 27_000
    full = fake_root(tmp_path / "d", memory_max="50000", memory_current="60000")
    assert available_memory_bytes(full) == 0


def test_processors_are_what_the_control_group_leaves(tmp_path: Path) -> None:
    everything = usable_processors(fake_root(tmp_path / "a"))
    assert everything >= 1
    assert usable_processors(fake_root(tmp_path / "b", cpu_max="max 100000")) == everything
    assert usable_processors(fake_root(tmp_path / "c", cpu_max="50000 100000")) == 1
