"""EXL3 row products of GLM-5.3-Flash's shapes on one card: time, weights and bytes a second, by block shape.

    python benchmarks/exl3_rows.py [--shapes 4,8,2,2,3 4,4,2,2,6] [--out FILE]

Each product is captured in a CUDA graph over several copies of its weights, so that the cache does not help
and launches do not count. The integer product alone is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from tandem.kernels.exl3.cuda import SOURCE, Exl3Rows, Shape, row_bucket
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Jobs, Scratch
from tandem.kernels.nvrtc import compile_cubin

CUBINS = Path("/tmp/cubins")
CASES = [
    # name, groups, matrices, jobs, inputs, outputs, bits, most rows of a job
    ("kda qkv", 1, 1, 1, 4096, 24576, 5, 1),
    ("kda o_proj", 1, 1, 1, 8192, 4096, 5, 1),
    ("mla o_proj", 1, 1, 1, 16384, 4096, 5, 1),
    ("q_b", 1, 1, 1, 1536, 16384, 5, 1),
    ("head", 1, 1, 1, 4096, 154880, 6, 1),
    ("9 gate+up", 2, 64, 9, 4096, 2048, 3, 1),
    ("9 down", 1, 128, 9, 2048, 4096, 3, 1),
    ("qkv, 8 rows", 1, 1, 1, 4096, 24576, 5, 8),
    ("57 gate+up", 2, 128, 57, 4096, 2048, 3, 4),
    ("57 down", 1, 128, 57, 2048, 4096, 3, 4),
]


def build(define: tuple[int, int, tuple[int, ...]]) -> None:
    bits, rows, (tiles, warps, columns, depth, blocks) = define
    source = SOURCE.with_defines(
        BITS_A=bits,
        BITS_B=bits,
        ROWS=rows,
        TILES=tiles,
        WARPS=warps,
        COLUMN_WARPS=columns,
        DEPTH=depth,
        BLOCKS=blocks,
    )
    compile_cubin(source, "sm_90a", CUBINS)


def jobs_of(matrices: int, jobs: int, rows: int, device: torch.device) -> Jobs:
    if jobs == 1:
        made = Jobs.dense(rows, device)
        which = int(torch.randint(matrices, (1,)))
        made.pair_matrix.fill_(which)
        made.job_matrix.fill_(which)
        return made
    chosen = sorted(torch.randperm(matrices)[:jobs].tolist())

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Jobs(
        ints([0] * jobs), ints(chosen), ints([jobs]), ints(list(range(jobs + 1))), ints(chosen), ints([jobs])
    )


def measure(kernels: Exl3Rows, stack: Exl3Stack, jobs_count: int, rows: int, splits: int) -> float:
    """Microseconds of one product."""
    device, repeats = kernels.device, 10
    sets = [jobs_of(stack.matrices, jobs_count, rows, device) for _ in range(repeats)]
    pairs = stack.groups * sets[0].capacity
    scratch = Scratch.empty(pairs * stack.inputs, splits * pairs * stack.widest, splits * pairs, device)
    inputs = scratch.inputs(pairs, stack.inputs)
    inputs.rotated.normal_()
    inputs.peaks.fill_(4.0)
    out = scratch.outputs(splits, pairs, stack.widest)

    def run() -> None:
        for jobs in sets:
            kernels.product(inputs, stack, jobs, out, rows)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeats)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["4,8,2,2,3", "4,4,2,2,6"])
    parser.add_argument("--splits", nargs="+", type=int, default=[1, 2, 3, 4, 5, 6, 8, 12])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", nargs="+", type=int, default=list(range(len(CASES))))
    options = parser.parse_args()
    shapes = [tuple(int(x) for x in shape.split(",")) for shape in options.shapes]
    wanted = {
        (case[6], row_bucket(case[7]), shape)
        for case in (CASES[i] for i in options.cases)
        for shape in shapes
    }
    with ProcessPoolExecutor() as pool:
        list(pool.map(build, sorted(wanted)))
    device = torch.device("cuda", 0)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    records = []
    for name, groups, matrices, jobs, inputs, outputs, bits, rows in (CASES[i] for i in options.cases):
        copies = matrices if jobs > 1 else max(2, int(200e6 // (inputs * outputs * bits / 8)))
        stack = Exl3Stack.of(
            [
                [
                    Exl3Matrix(
                        torch.randint(
                            -32768,
                            32768,
                            (inputs // 16, outputs // 16, 16 * bits),
                            dtype=torch.int16,
                            device=device,
                        ),
                        torch.ones(inputs, device=device).half(),
                        torch.ones(outputs, device=device).half(),
                    )
                    for _ in range(copies)
                ]
                for _ in range(groups)
            ]
        )
        weights = inputs * outputs * jobs * groups
        print(name)
        for shape in shapes:
            kernels = Exl3Rows(device, CUBINS, processors, Shape(*shape))
            line = ""
            for splits in options.splits:
                if (inputs // 16) // splits < shape[1] or 2 * row_bucket(rows) * inputs // splits > 100_000:
                    continue
                us = measure(kernels, stack, jobs, rows, splits)
                line += f" s{splits} {us:6.1f} {weights / us * 1e-6:4.2f}"
                records.append(
                    {"name": name, "shape": shape, "rows": rows, "splits": splits, "us": round(us, 2)}
                    | {"tera_weights_per_s": round(weights / us * 1e-6, 2)}
                    | {"terabytes_per_s": round(weights * bits / 8 / us * 1e-6, 2)}
                )
            print(f"  {','.join(map(str, shape))}: {line}")
    if options.out:
        record = {"card": torch.cuda.get_device_name(0), "torch": torch.__version__, "products": records}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
