"""Where pip is told to look for packages: the demo model comes from the same index.

Order as pip's own: environment variable over the virtual environment's file over the user's over the
machine's. Only ``index-url`` and ``cert`` are taken; ``--extra-index-url`` and ``--find-links`` are not.
"""

from __future__ import annotations

import configparser
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import SettingsError

DEFAULT_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """The simple index (PEP 503/691) to ask, and why."""

    url: str
    source: str
    """The variable or file that named it, or ``default``."""
    ca_bundle: Path | None
    """Certificates to trust instead of the built-in ones."""


def read_package_index(env: Mapping[str, str], home: Path, system: Path = Path("/etc")) -> PackageIndex:
    """Resolve the index from ``env`` and pip's configuration files under ``home`` and ``system``.

    Raises SettingsError naming the file that cannot be parsed or the URL that is not http(s).
    """
    url, source = DEFAULT_INDEX, "default"
    bundle: str | None = None
    for path in _configuration_files(env, home, system):
        settings = _read_file(path)
        if "index-url" in settings:
            url, source = settings["index-url"], str(path)
        bundle = settings.get("cert", bundle)
    for name in ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        if env.get(name):
            url, source = env[name], name
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        bundle = env.get(name) or bundle
    if not url.startswith(("http://", "https://")):
        raise SettingsError(
            "The package index must be an http or https address",
            found=f"{url!r} (from {source})",
            remedy="set PIP_INDEX_URL to a simple index",
        )
    return PackageIndex(url.rstrip("/"), source, Path(bundle) if bundle else None)


def _configuration_files(env: Mapping[str, str], home: Path, system: Path) -> list[Path]:
    """Least important first."""
    named = env.get("PIP_CONFIG_FILE")
    if named == "/dev/null":
        return []
    config_home = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    shared = env.get("XDG_CONFIG_DIRS") or str(system / "xdg")
    candidates = [
        *(Path(folder) / "pip" / "pip.conf" for folder in reversed(shared.split(":")) if folder),
        system / "pip.conf",
        home / ".pip" / "pip.conf",
        config_home / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    if named:
        candidates.append(Path(named))
    return [path for path in candidates if path.is_file()]


def _read_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        raise SettingsError(
            f"pip's configuration file {path} cannot be read", found=str(error).splitlines()[0]
        ) from error
    settings: dict[str, str] = {}
    for section in ("global", "install", "download"):
        if parser.has_section(section):
            settings.update(dict(parser.items(section)))
    return {key: value.strip() for key, value in settings.items() if value.strip()}
