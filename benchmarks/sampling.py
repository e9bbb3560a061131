"""Sampling from 154,880 logits that lie on a card: the kernel beside the host's numpy, microseconds.

    python benchmarks/sampling.py [--out FILE]

Host: logits copied to pinned memory, then rows one after the other. Card: one launch and the wait for its
result; kernel: the launch alone, by events around ten in a graph. What is asked for is in hand. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tandem.cli.facts import processor_name, source_commit
from tandem.core.requests import SamplingParams
from tandem.core.settings import read_environment
from tandem.kernels.sampling.cuda import CudaRowSampler
from tandem.kernels.sampling.operands import Edits, RowRequest
from tandem.sampling.host import draw

VOCABULARY = 154_880
REPEATS = 15
CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(),
    "top_p 0.95": SamplingParams(top_p=0.95),
    "top_k 50, top_p 0.95": SamplingParams(top_k=50, top_p=0.95),
    "top_p 0.95, 20 logprobs": SamplingParams(top_p=0.95, logprobs=20),
    "greedy, penalties on 8,000 tokens": SamplingParams(temperature=0.0, repetition_penalty=1.1),
    "top_p 0.95, grammar": SamplingParams(top_p=0.95),
}


def logits_of(kind: str, rows: int) -> torch.Tensor:
    """``peaked``: most of the weight on a few dozen tokens, as in a language model; ``flat``: on most."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(rows, VOCABULARY, generator=generator)
    if kind == "peaked":
        values = values * 2.0
        values[:, 1000:1040] += torch.linspace(18.0, 8.0, 40)
    return values


def request_of(name: str) -> RowRequest:
    edits = mask = None
    if "penalties" in name:
        seen = np.random.default_rng(2).choice(VOCABULARY, 8000, replace=False)
        edits = Edits(seen=seen, penalty=1.1)
    if "grammar" in name:
        mask = np.random.default_rng(3).bytes(VOCABULARY // 8)
    return RowRequest(CASES[name], 0.37, edits, mask)


def median_us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS + 3):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return round(1e6 * statistics.median(times[3:]), 1)


def kernel_us(call: Callable[[], object]) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 10)
    return round(1e3 * statistics.median(times), 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda", 0)
    sampler = CudaRowSampler(VOCABULARY, device, read_environment().cache_dir)
    records = []
    for kind in ("peaked", "flat"):
        for rows in (1, 8):
            logits = logits_of(kind, rows).to(device)
            pinned = torch.empty(rows, VOCABULARY, pin_memory=True)
            for name in CASES:
                requests = [request_of(name)] * rows

                def on_host() -> None:
                    pinned.copy_(logits)  # noqa: B023
                    for row, request in zip(pinned.numpy(), requests, strict=True):  # noqa: B023
                        draw(row, request)

                def on_card() -> None:
                    sampler.sample(logits, requests)  # noqa: B023

                record = {
                    "logits": kind,
                    "rows": rows,
                    "case": name,
                    "host_us": median_us(on_host),
                    "card_us": median_us(on_card),
                    "kernel_us": kernel_us(lambda: sampler.launch(logits, requests)),  # noqa: B023
                }
                records.append(record)
                print(" | ".join(str(value) for value in record.values()), flush=True)
    if arguments.out:
        machine = {"card": torch.cuda.get_device_name(0), "torch": torch.__version__, "numpy": np.__version__}
        record = {**machine, "processor": processor_name(), "commit": source_commit(), "sampling": records}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
