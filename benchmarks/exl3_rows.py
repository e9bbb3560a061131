"""EXL3 row products of GLM-5.3-Flash's shapes on one card: time, weights and bytes a second.

    python benchmarks/exl3_rows.py [--out benchmarks/results/exl3_rows_<card>_<date>.json]

Each product is captured in a CUDA graph over several copies of its weights, so that the cache does not help
and launches do not count. The three parts (rotate, product, finish) are timed together.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

from tandem.kernels.exl3.cuda import Activations, Exl3Stack, Jobs, RowsKernels, dense_jobs, splits_for

CASES = [
    # name, matrices, jobs, inputs, outputs, bits
    ("kda qkv", 1, 1, 4096, 24576, 5),
    ("o_proj", 1, 1, 8192, 4096, 5),
    ("mla o_proj", 1, 1, 16384, 4096, 5),
    ("q_b", 1, 1, 1536, 16384, 5),
    ("dense gate", 1, 1, 4096, 12288, 4),
    ("dense down", 1, 1, 12288, 4096, 4),
    ("head", 1, 1, 4096, 154880, 6),
    ("8 experts gate", 288, 8, 4096, 2048, 3),
    ("8 experts down", 288, 8, 2048, 4096, 3),
    ("57 experts gate", 288, 57, 4096, 2048, 3),
    ("57 experts down", 288, 57, 2048, 4096, 3),
]


def expert_jobs(matrices: int, jobs: int, device: torch.device) -> Jobs:
    chosen = sorted(torch.randperm(matrices)[:jobs].tolist())

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Jobs(
        ints([0] * jobs), ints(chosen), ints([jobs]), ints(list(range(jobs + 1))), ints(chosen), ints([jobs])
    )


def measure(
    name: str, case: tuple[int, int, int, int, int], rows: int, kernels: RowsKernels
) -> dict[str, object]:
    matrices, job_count, inputs, outputs, bits = case
    device = kernels.device
    one = inputs * outputs * bits / 8
    copies = matrices if matrices > 1 else max(2, int(300e6 // one))
    trellis = torch.randint(
        -32768, 32768, (copies, inputs // 16, outputs // 16, 16 * bits), dtype=torch.int16, device=device
    )
    stack = Exl3Stack.of(
        trellis,
        torch.randn(copies, inputs, device=device).half(),
        torch.randn(copies, outputs, device=device).half(),
    )
    repeats = 20
    x = torch.randn(rows, inputs, device=device)
    sets = []
    for _ in range(repeats):
        if matrices > 1:
            jobs = expert_jobs(matrices, job_count, device)
        else:
            jobs = dense_jobs(rows, device)
            which = int(torch.randint(copies, (1,)))
            jobs.pair_matrix.fill_(which)
            jobs.job_matrix.fill_(which)
        sets.append(jobs)
    pairs = sets[0].capacity
    most = rows if matrices == 1 else 1
    properties = torch.cuda.get_device_properties(device)
    splits = splits_for(inputs, outputs, job_count, most, properties.multi_processor_count)
    activations = Activations.empty(pairs, inputs, device)
    partial = torch.empty(splits, pairs, 2, outputs, dtype=torch.int32, device=device)
    y = torch.empty(pairs, outputs, device=device)

    def step(jobs: Jobs) -> None:
        kernels.rotate(x, stack, jobs, activations)
        kernels.product(activations, stack, jobs, partial, most)
        kernels.finish(partial, activations, stack, jobs, y)

    for jobs in sets[:2]:
        step(jobs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for jobs in sets:
            step(jobs)
    times = []
    for _ in range(15):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeats)
    microseconds = statistics.median(times)
    weights = inputs * outputs * job_count
    return {
        "name": name,
        "rows": rows,
        "splits": splits,
        "us": round(microseconds, 2),
        "tera_weights_per_s": round(weights / microseconds * 1e-6, 2),
        "terabytes_per_s": round(weights * bits / 8 / microseconds * 1e-6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    kernels = RowsKernels(device, None)
    results = []
    for name, *case in CASES:
        for rows in (1, 8) if case[0] == 1 else (1,):
            row = measure(name, tuple(case), rows, kernels)  # type: ignore[arg-type]
            results.append(row)
            print(
                "{name:18s} rows {rows:2d} splits {splits:2d} {us:8.2f} us {tera_weights_per_s:6.2f} Tw/s "
                "{terabytes_per_s:5.2f} TB/s".format(**row)
            )
    if options.out:
        record = {"card": torch.cuda.get_device_name(0), "torch": torch.__version__, "products": results}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
