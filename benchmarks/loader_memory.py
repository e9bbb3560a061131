"""Host memory while a checkpoint is read to a card: its peak, by kind, and the rate.

    python benchmarks/loader_memory.py [--layers 7] [--folder /tmp/loader_memory] [--out FILE]

Writes random EXL3 weights of GLM-5.3-Flash's first layers as one safetensors file and loads them as ``tandem
serve`` does, in a process of its own: cold (its pages dropped from the page cache) and warm. The process is
watched from outside, fifty times a second. What counts against the bar is memory that is no file's: anonymous
pages, and pinned buffers, which the kernel counts as shared or not at all. ``--cards cpu:1 --small`` is for
trying the script without a card.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tandem.core.plan import GIB, MIB
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS, SMALL, SMALL_BITS

BAR_BYTES = 4 * GIB
CONTEXT, CHUNK, PAGE, SLOTS = 16_384, 4096, 256, 8
_EVERY_S = 0.02
_NOISE_BYTES = 256 * MIB
_KINDS = {"RssAnon": "anonymous", "RssFile": "file", "RssShmem": "shared", "VmHWM": "resident"}


def spec_of(layers: int, small: bool) -> Glm5NextSpec:
    """The first layers of a model; a checkpoint with embedding and head."""
    spec = SMALL if small else RELEASED
    kinds = ("layer_is_mla", "layer_is_dense", "layer_shares_selection")
    cut = {kind: getattr(spec, kind)[:layers] for kind in kinds}
    return replace(spec, num_layers=min(layers, spec.num_layers), **cut)


def write(path: Path, spec: Glm5NextSpec, small: bool) -> None:
    """Codes are slices of one block of noise: all are valid, and no generator is as fast as a disk."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = RandomCheckpoint(spec, SMALL_BITS if small else RELEASED_BITS, torch.device("cpu"))
    header: dict[str, object] = {}
    end = 0
    for name in source.names():
        of = source.header(name)
        header[name] = {"dtype": of.dtype, "shape": of.shape, "data_offsets": [end, end + of.stored_bytes]}
        end += of.stored_bytes
    text = json.dumps(header).encode()
    noise = np.random.default_rng(1).bytes(_NOISE_BYTES)
    with path.with_suffix(".part").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for index, name in enumerate(source.names()):
            of = source.header(name)
            if of.dtype == "I16" and of.stored_bytes < _NOISE_BYTES // 2:
                first = 4096 * index % (_NOISE_BYTES // 2)
                file.write(memoryview(noise)[first : first + of.stored_bytes])
            else:
                file.write(source.read(name).contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".part").rename(path)


def load(path: Path, spec: Glm5NextSpec, cards: str) -> None:
    """What the watched process does: prints a line of JSON for every phase that ends."""
    from tandem.api.card_defaults import defaults_for
    from tandem.api.load import footprint_of, free_card_bytes
    from tandem.core.cards import parse_cards, resolve_cards
    from tandem.engine.build import card_device
    from tandem.loader.device import DeviceSource
    from tandem.loader.safetensors import SafetensorsSource
    from tandem.models.glm5_next.model import build_stage
    from tandem.planner.place import PlanRequest, place

    def phase(name: str, **facts: object) -> None:
        print(json.dumps({"phase": name, "at": time.monotonic(), **facts}), flush=True)

    planned_on = resolve_cards(parse_cards(cards), free_card_bytes)
    kind = defaults_for(planned_on).kind
    on_card = kind == "cuda"
    if on_card:
        torch.zeros(1, device=card_device(planned_on[0]))
    phase("libraries and context")
    source = SafetensorsSource.open(path.parent)
    context = min(CONTEXT, spec.context_tokens)
    request = PlanRequest(context, max_slots=SLOTS, page_tokens=PAGE, chunk_tokens=CHUNK, spare=int(on_card))
    plan = place(footprint_of(spec, source, CHUNK, "fp16", kind), planned_on, request)
    stage = plan.stages[0]
    phase("headers and plan")
    last = [0.0, 0]

    def arrived(count: int) -> None:
        last[:] = time.monotonic(), last[1] + count

    sizes = {"total_pages": plan.total_pages, "page_tokens": PAGE, "chunk_tokens": CHUNK, "max_slots": SLOTS}
    if on_card:
        device = card_device(stage.card)
        with DeviceSource(source, device, end_layer=stage.end_layer, arrived=arrived) as weights:
            built = build_stage(spec, weights, stage, **sizes, cache_dtype="fp16")
    else:
        built = build_stage(spec, source, stage, **sizes, cache_dtype="fp16")
        arrived(path.stat().st_size)
    pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) if on_card else 0
    print(json.dumps({"phase": "reading", "at": last[0], "bytes": last[1]}), flush=True)
    phase("kernels and graphs", pinned_bytes=pinned, weight_bytes=built.weight_bytes)


def memory(pid: int) -> dict[str, int]:
    """Bytes by kind; empty once the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", status, re.M))
    return {kind: int(found[field]) * 1024 for field, kind in _KINDS.items() if field in found}


def watch(command: list[str]) -> tuple[list[dict[str, float]], list[tuple[float, dict[str, int]]]]:
    """Run a loading process: the phases it told, and samples of its memory with their times."""
    samples = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            samples.append((time.monotonic(), memory(child.pid)))
            time.sleep(_EVERY_S)
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
    if child.returncode:
        raise SystemExit(child.returncode)
    return [json.loads(line) for line in lines if line.startswith("{")], samples


def phases_of(
    told: list[dict[str, float]], samples: list[tuple[float, dict[str, int]]]
) -> Iterator[tuple[str, dict[str, int]]]:
    """The peak of every kind within each phase, MiB."""
    begin = 0.0
    for phase in told:
        within = [found for at, found in samples if begin <= at < phase["at"] and found]
        peaks = {kind: max((found[kind] for found in within), default=0) for kind in _KINDS.values()}
        yield str(phase["phase"]), {f"{kind}_mib": size // MIB for kind, size in peaks.items()}
        begin = phase["at"]


def measure(path: Path, options: argparse.Namespace, *, cold: bool) -> dict[str, object]:
    if cold:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, __file__, "--child", "--folder", str(options.folder)]
    command += ["--layers", str(options.layers), "--cards", options.cards, *["--small"] * options.small]
    told, samples = watch(command)
    by_name: Mapping[str, dict[str, float]] = {str(phase["phase"]): phase for phase in told}
    reading, last = by_name["reading"], told[-1]
    seconds = reading["at"] - by_name["headers and plan"]["at"]
    until = [found for at, found in samples if at < reading["at"] and found]
    anonymous = max(found["anonymous"] for found in until)
    pinned = max(int(last["pinned_bytes"]), max(found["shared"] for found in until))
    return {
        "read_gib": round(reading["bytes"] / GIB, 2),
        "seconds": round(seconds, 1),
        "rate_gb_s": round(reading["bytes"] / seconds / 1e9, 2),
        "peak_anonymous_mib": anonymous // MIB,
        "pinned_mib": pinned // MIB,
        "counted_mib": (anonymous + pinned) // MIB,
        "met": anonymous + pinned < BAR_BYTES,
        "phases": dict(phases_of(told, samples)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/loader_memory"))
    parser.add_argument("--cards", default="cuda:1")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    spec, path = spec_of(options.layers, options.small), options.folder / "model.safetensors"
    if options.child:
        load(path, spec, options.cards)
        return
    write(path, spec, options.small)
    on_card = options.cards.startswith("cuda")
    record = {
        "benchmark": "loader_memory",
        "command": f"python benchmarks/loader_memory.py --layers {options.layers}",
        "date": time.strftime("%Y-%m-%d"),
        "card": torch.cuda.get_device_name(0) if on_card else "CPU",
        "torch": torch.__version__,
        "layers": spec.num_layers,
        "file_gib": round(path.stat().st_size / GIB, 2),
        "bar_mib": BAR_BYTES // MIB,
    }
    for name, cold in (("cold", True), ("warm", False)):
        record[name] = measure(path, options, cold=cold)
        print(name, json.dumps(record[name]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    path.unlink()


if __name__ == "__main__":
    main()
