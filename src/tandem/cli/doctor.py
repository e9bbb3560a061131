"""``tandem doctor``: what this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer
from rich.table import Table

from tandem.cli.console import output, print_json
from tandem.cli.facts import (
    OPTIONAL_PACKAGES,
    GpuReport,
    gpu_report,
    machine_facts,
    package_versions,
    processor_name,
    source_commit,
)
from tandem.cli.flags import JsonFlag
from tandem.core.machine import available_memory_bytes, memory_info, usable_processors
from tandem.core.plan import GIB, format_bytes
from tandem.core.settings import Environment, read_environment

State = Literal["ok", "note", "problem"]

_MARKS: dict[State, str] = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}
_FOLDER_REMEDY = "set TANDEM_CACHE_DIR, TANDEM_DATA_DIR or HF_HOME"
_LEAST_PYTHON = (3, 11)
_LEAST_MEMORY_BYTES = 1 * GIB
"""The demo model with its caches, torch and the server."""


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    state: State
    detail: str
    remedy: str | None = None


def doctor(json: JsonFlag = False) -> None:
    """Look over this machine: cards, driver, links, memory, versions, folders, and what is missing.

    The exit code is 1 if something keeps Tandem from running, 0 otherwise (no GPU is no problem).

    `tandem doctor`

    `tandem doctor --json | jq '.findings[] | select(.state != "ok")'`
    """
    environment = read_environment()
    gpus = gpu_report()
    findings = list(examine(environment, gpus))
    if json:
        print_json(
            {
                "machine": machine_facts(),
                "commit": source_commit(),
                "gpu": asdict(gpus),
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in findings:
            detail = finding.detail + (f"; try: {finding.remedy}" if finding.remedy else "")
            table.add_row(_MARKS[finding.state], finding.subject, detail)
        output().print(table)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def examine(environment: Environment, gpus: GpuReport) -> Iterator[Finding]:
    """All findings, the most basic first."""
    yield _python()
    yield from _packages(bool(gpus.cards))
    processors = usable_processors()
    yield Finding("processor", "ok", f"{processor_name()}, {processors} usable threads")
    yield _memory()
    yield from _cards(gpus)
    yield from _torch(gpus)
    yield _folder("cache", environment.cache_dir)
    yield _folder("data", environment.data_dir)
    yield _folder("hub cache", environment.hub_cache_dir)
    yield _demo(environment)
    yield _network(environment)


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info < _LEAST_PYTHON:
        return Finding("python", "problem", found, "Python 3.11 or newer")
    return Finding("python", "ok", found)


def _packages(has_gpu: bool) -> Iterator[Finding]:
    versions = package_versions()
    present = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Finding("packages", "ok", present)
    missing = [name for name, version in versions.items() if version is None]
    needed = [name for name in missing if name not in OPTIONAL_PACKAGES]
    if needed:
        yield Finding("packages", "problem", f"missing: {', '.join(needed)}", "scripts/setup.sh")
    optional = [name for name in missing if name in OPTIONAL_PACKAGES]
    if optional and has_gpu:
        yield Finding("packages", "note", f"missing for CUDA: {', '.join(optional)}", "pip install '.[gpu]'")


def _memory() -> Finding:
    available = available_memory_bytes()
    detail = f"{format_bytes(memory_info()['MemTotal'])}, {format_bytes(available)} available"
    if available < _LEAST_MEMORY_BYTES:
        return Finding("memory", "problem", detail, f"at least {format_bytes(_LEAST_MEMORY_BYTES)} available")
    return Finding("memory", "ok", detail)


def _cards(gpus: GpuReport) -> Iterator[Finding]:
    if gpus.trouble:
        yield Finding("driver", "problem", gpus.trouble, "reinstall or reload the NVIDIA driver")
        return
    if gpus.driver is None:
        yield Finding("cards", "note", "no NVIDIA driver: models run on the processor (--cards cpu:N)")
        return
    yield Finding("driver", "ok", gpus.driver)
    if not gpus.cards:
        yield Finding("cards", "note", "the driver sees no card")
    for card in gpus.cards:
        peers = ", ".join(f"cuda:{peer}" for peer in card.peers) or "none"
        yield Finding(
            f"cuda:{card.index}",
            "ok",
            f"{card.name}, {format_bytes(card.free_bytes)} of {format_bytes(card.total_bytes)} free, "
            f"PCIe {card.link}, peer access to {peers}",
        )


def _torch(gpus: GpuReport) -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", "problem", f"cannot be imported: {error}", "scripts/setup.sh")
        return
    built = torch.version.cuda
    detail = f"{torch.__version__}, {torch.get_num_threads()} threads, " + (
        f"built for CUDA {built}" if built else "built without CUDA"
    )
    if not gpus.cards:
        yield Finding("torch", "ok", detail)
    elif built is None:
        yield Finding("torch", "note", f"{detail}: the cards cannot be used", "install a CUDA build of torch")
    elif not torch.cuda.is_available():
        yield Finding("torch", "problem", f"{detail}, but CUDA does not start", "update the NVIDIA driver")
    else:
        yield Finding("torch", "ok", f"{detail}, {torch.cuda.device_count()} cards")


def _folder(name: str, folder: Path) -> Finding:
    from tandem.loader.download import free_bytes

    existing = folder
    while not existing.exists():
        existing = existing.parent
    detail = f"{folder}, {format_bytes(free_bytes(folder))} free"
    if not existing.is_dir():
        return Finding(name, "problem", f"{folder}: {existing} is not a folder", _FOLDER_REMEDY)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, "problem", f"{folder} cannot be written", _FOLDER_REMEDY)
    return Finding(name, "ok", detail)


def _demo(environment: Environment) -> Finding:
    from tandem.loader.demo import DEMO_MODEL
    from tandem.loader.store import list_stored

    stored = [model for model in list_stored(environment) if model.kind == "demo"]
    if not stored:
        return Finding("demo model", "note", f"{DEMO_MODEL.name} is not here yet", "tandem models pull demo")
    state = stored[0].state
    return Finding("demo model", "ok" if state == "complete" else "note", f"{stored[0].path} ({state})")


def _network(environment: Environment) -> Finding:
    from tandem.loader.package_index import without_credentials

    if environment.offline:
        return Finding("network", "note", "offline mode is set: nothing is downloaded")
    index = environment.package_index
    return Finding("network", "ok", f"package index {without_credentials(index.url)} ({index.source})")
