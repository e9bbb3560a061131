"""Resident memory of a server of the demo model: ready, at work, and with every page of its cache in use.

    python benchmarks/memory.py [--kv fp32] [--out benchmarks/results/memory.json]

Starts ``tandem serve`` on a free port, asks for a prompt of 1,024 tokens and for eight streams at once, and
then fills the cache. The peak is the kernel's own (VmHWM), loading included. Next to it stands the bar: 1.5 ×
the weights as they lie in memory + 400 MiB. Kernels should have been compiled once before: compiling them
takes 200 MiB more.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

MIB = 2**20
PROMPT_TOKENS = 1024
STREAMS = 8
BAR_TIMES_WEIGHTS, BAR_REST_BYTES = 1.5, 400 * MIB


def memory(pid: int) -> dict[str, float]:
    """Peak and present resident MiB of a process, and how much of the present is no file's."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", status, re.M)}
    names = {"VmHWM": "peak_mib", "VmRSS": "resident_mib", "RssAnon": "anonymous_mib"}
    return {name: round(kib[field] / 1024, 1) for field, name in names.items()}


def start(kv: str) -> tuple[subprocess.Popen[str], str, float]:
    """A ready server, its address and its weights in MiB."""
    server = subprocess.Popen(
        [Path(sys.executable).with_name("tandem"), "serve", "--port", "0", "--kv", kv],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    url, weights = "", 0.0
    for line in server.stderr:
        if match := re.search(r"Listening at (\S+);", line):
            url = match[1]
        if match := re.search(r"weights ([\d.]+) MiB", line):
            weights = float(match[1])
        if line.startswith("Ready"):
            return server, url, weights
    raise SystemExit("the server did not start")


def complete(client: httpx.Client, **fields: object) -> int:
    """One completion; the prompt's tokens."""
    answer = client.post("/v1/completions", json={"temperature": 0, "ignore_eos": True, **fields})
    answer.raise_for_status()
    tokens: int = answer.json()["usage"]["prompt_tokens"]
    return tokens


def long_prompt(first: int) -> list[int]:
    return [(first + 7919 * i) % 40_000 + 100 for i in range(PROMPT_TOKENS)]


def measure(kv: str) -> dict[str, object]:
    server, url, weights = start(kv)
    try:
        with httpx.Client(base_url=url, timeout=300) as client, ThreadPoolExecutor(STREAMS) as threads:
            phases = {"ready": memory(server.pid)}
            complete(client, prompt=long_prompt(0), max_tokens=24)
            phases["prompt_1024"] = memory(server.pid)
            list(
                threads.map(
                    lambda i: complete(client, prompt=long_prompt(i)[:64], max_tokens=128), range(STREAMS)
                )
            )
            phases["prompt_1024_and_streams_8"] = memory(server.pid)
            pages = client.get("/health").json()["pages"]
            for i in range(2 * pages["total"] * 64 // PROMPT_TOKENS):
                complete(client, prompt=long_prompt(1000 + i), max_tokens=1)
            phases["cache_full"] = memory(server.pid)
            pages = client.get("/health").json()["pages"]
    finally:
        server.terminate()
        server.wait(20)
    bar = BAR_TIMES_WEIGHTS * weights + BAR_REST_BYTES / MIB
    return {
        "kv": kv,
        "weights_mib": weights,
        "phases": phases,
        "pages": pages,
        "bar_mib": round(bar, 1),
        "met_at_work": phases["prompt_1024_and_streams_8"]["peak_mib"] <= bar,
        "met_with_full_cache": phases["cache_full"]["peak_mib"] <= bar,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv", default="fp32")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/memory.json"))
    options = parser.parse_args()
    record = {
        "benchmark": "memory",
        "command": f"python benchmarks/memory.py --kv {options.kv}",
        "date": time.strftime("%Y-%m-%d"),
        **measure(options.kv),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
