"""The routed experts' products of a prefill chunk at GLM-5.3-Flash's shapes on one card: time and rate.

    python benchmarks/exl3_chunk.py [--rows 4096] [--sources FILE ...]

Every row meets eight experts of 288, drawn uniformly or skewed, and the shared one of more bits. Rates count
the rows that are there, not those a block is filled up with. Other sources of the same kernel are compared
with the first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from tandem.kernels.exl3 import routed
from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.exl3.chunk import Exl3Chunk
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack
from tandem.kernels.nvrtc import KernelSource

EXPERTS, CHOICES, HIDDEN, WIDTH = 288, 8, 4096, 2048


def stack_of(groups: int, inputs: int, outputs: int, device: torch.device) -> Exl3Stack:
    def matrix(bits: int) -> Exl3Matrix:
        shape = (inputs // 16, outputs // 16, 16 * bits)
        return Exl3Matrix(
            torch.randint(-32768, 32768, shape, dtype=torch.int16, device=device),
            torch.randn(inputs, device=device).half(),
            torch.randn(outputs, device=device).half(),
        )

    return Exl3Stack.of([[matrix(3) for _ in range(EXPERTS)] + [matrix(5)] for _ in range(groups)])


def milliseconds(run: Callable[[], None], repeats: int = 7) -> float:
    run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(
    kernels: Exl3Chunk, stack: Exl3Stack, blocks: Blocks, pairs: torch.Tensor, sources: list[Path]
) -> None:
    """pairs: those that are not holes."""
    device = pairs.device
    rotated = torch.randn(stack.groups, blocks.pairs, stack.inputs, device=device).half()
    outputs = tuple(torch.empty(blocks.pairs, n, dtype=torch.float16, device=device) for n in stack.outputs)
    operations = 2 * pairs.numel() * stack.inputs * sum(stack.outputs)
    first: list[torch.Tensor] = []
    for source in sources:
        routed.SOURCE = KernelSource(source.resolve())
        for out in outputs:
            out.fill_(float("nan"))
        ms = milliseconds(lambda: kernels.product(rotated, stack, blocks, outputs))
        found = [out[pairs].float() for out in outputs]
        first = first or found
        error = max(float((a - b).norm() / b.norm()) for a, b in zip(found, first, strict=True))
        rate = operations / ms * 1e-9
        print(f"  {source.stem:24s} {ms:7.3f} ms {rate:6.1f} TFLOP/s, off by {error:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--sources", nargs="+", type=Path, default=[routed.SOURCE.path])
    options = parser.parse_args()
    device, rows = torch.device("cuda", 0), options.rows
    gate_up, down = stack_of(2, HIDDEN, WIDTH, device), stack_of(1, WIDTH, HIDDEN, device)
    kernels = Exl3Chunk(device, Path("/tmp/cubins"))
    scores = torch.rand(rows, EXPERTS, device=device)
    for name, skew in (("uniform", 0.0), ("skewed", 0.25)):
        chosen = (scores + skew * torch.rand(EXPERTS, device=device)).topk(CHOICES, 1).indices
        experts = torch.nn.functional.pad(chosen.sort(1).values, (0, 1), value=EXPERTS)
        blocks, row_pair = Blocks.routed(experts, EXPERTS + 1)
        counts = chosen.flatten().bincount(minlength=EXPERTS)
        print(f"{name}: {int(counts.min())} to {int(counts.max())} rows, {int(blocks.count)} blocks")
        for product, stack in (("gate, up", gate_up), ("down", down)):
            print(product)
            measure(kernels, stack, blocks, row_pair.flatten().long(), options.sources)
    x = torch.randn(rows, HIDDEN, device=device).half()
    rotated = torch.empty(2, blocks.pairs, HIDDEN, dtype=torch.float16, device=device)
    ms = milliseconds(lambda: kernels.rotate(x, gate_up.suh, blocks, rotated))
    print(f"rotation of gate's and up's inputs {ms:7.3f} ms")


if __name__ == "__main__":
    main()
