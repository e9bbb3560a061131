"""GLM-5.3-Flash's steps at full size with random weights on one card, and what each kernel takes.

python benchmarks/glm_rows.py [--profile]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections import defaultdict
from pathlib import Path

import torch

from tandem.api.rehearse import STEPS, Rehearsal, RowsCase
from tandem.models.glm5_next.cuda_stage import CacheRoom, RowsInput, RowsProgram, rows_scratch
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS


def profile(rehearsal: Rehearsal, case: RowsCase) -> None:
    inputs = RowsInput.empty(rehearsal.stage.room.max_pages, rehearsal.stage.device)
    rehearsal._describe(inputs, case)
    inputs.token_ids.random_(0, RELEASED.vocab_size)
    rows = case.rows * case.sequences
    program = RowsProgram(
        rehearsal.stage, rows, inputs, rows_scratch(rehearsal.stage, rehearsal.cache_dir), rehearsal.cache_dir
    )
    program.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program.run()
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    # Kernels begin before the one before them ends: what one adds to the step is from end to end.
    totals: dict[str, list[float]] = defaultdict(list)
    events = sorted(found.events(), key=lambda event: event.time_range.end)
    for before, event in itertools.pairwise(events):
        totals[event.name].append(event.time_range.end - before.time_range.end)
    print(f"-- {case.name}: {(events[-1].time_range.end - events[0].time_range.end) / 1e3:.3f} ms")
    for name, times in sorted(totals.items(), key=lambda item: -sum(item[1])):
        total = sum(times)
        print(f"{name[:40]:40s} {len(times):5d} x {total / len(times):8.2f} us = {total / 1e3:8.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--tokens", type=int, default=266240)
    parser.add_argument("--layers", type=int, default=RELEASED.num_layers, help="a cut of the model")
    parser.add_argument("--cases", nargs="+", type=int, default=list(range(len(STEPS))))
    parser.add_argument("--no-prefill", action="store_true")
    options = parser.parse_args()
    spec = dataclasses.replace(
        RELEASED,
        num_layers=options.layers,
        **{
            name: getattr(RELEASED, name)[: options.layers]
            for name in ("layer_is_mla", "layer_is_dense", "layer_shares_selection")
        },
    )
    pages = options.tokens // 256
    room = CacheRoom(pages, 256, 8, pages, eight_bit=False)
    rehearsal = Rehearsal.build(spec, RELEASED_BITS, room, torch.device("cuda", 0), Path("/tmp/cubins"))
    gib = 2**30
    sizes = [rehearsal.stage.weight_bytes, rehearsal.stage.cache_bytes, torch.cuda.memory_allocated()]
    weights, caches, allocated = (size / gib for size in sizes)
    print(
        f"load {rehearsal.load_seconds:.1f} s, GiB: w {weights:.2f}, caches {caches:.2f}, all {allocated:.2f}"
    )
    for name, value in rehearsal.measure(
        [STEPS[i] for i in options.cases] if options.rows else STEPS[:1]
    ).items():
        print(f"{name:20s} {value:8.3f}")
    sys.stdout.flush()
    for chunk in () if options.no_prefill else (2048, 4096, 8192):
        print(f"prefill 8192, chunk {chunk}: {rehearsal.prefill(8192, chunk):.0f} tokens/s", flush=True)
    if options.profile and not options.no_prefill:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            rehearsal.prefill(4096, 4096)
        print(
            found.key_averages().table(sort_by="self_cuda_time_total", row_limit=28, max_name_column_width=45)
        )
    if options.profile and options.rows:
        for case in (STEPS[0], STEPS[5], STEPS[7]):
            profile(rehearsal, case)


if __name__ == "__main__":
    main()
