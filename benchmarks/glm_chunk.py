"""What each kernel of a prefill chunk takes on one card: GLM-5.3-Flash with fewer layers, each of full size.

python benchmarks/glm_chunk.py [--layers 12] [--chunk 4096] [--tokens 8192]
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path

import torch

from tandem.api.rehearse import Rehearsal
from tandem.models.glm5_next.cuda_stage import CacheRoom
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS


def cut(spec: Glm5NextSpec, layers: int) -> Glm5NextSpec:
    return dataclasses.replace(
        spec,
        num_layers=layers,
        layer_is_mla=spec.layer_is_mla[:layers],
        layer_is_dense=spec.layer_is_dense[:layers],
        layer_shares_selection=spec.layer_shares_selection[:layers],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    pages = options.tokens // 256
    room = CacheRoom(pages, 256, 8, pages, eight_bit=False)
    spec = cut(RELEASED, options.layers)
    rehearsal = Rehearsal.build(spec, RELEASED_BITS, room, torch.device("cuda", 0), Path("/tmp/cubins"))
    rate = rehearsal.prefill(options.tokens, options.chunk)
    print(f"{options.layers} layers: {rate:.0f} tokens/s, {options.chunk / rate * 1e3:.1f} ms a chunk")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        rehearsal.prefill(options.tokens, options.chunk)
    chunks = 4 * options.tokens // options.chunk
    totals: dict[str, list[float]] = defaultdict(list)
    for event in found.events():
        totals[event.name].append(event.device_time)
    print(f"per chunk: {sum(map(sum, totals.values())) / chunks * 1e-3:.1f} ms in kernels")
    for name, times in sorted(totals.items(), key=lambda item: -sum(item[1]))[:40]:
        total = sum(times)
        each = total / len(times)
        print(
            f"{name[:60]:60s} {len(times) / chunks:6.1f} x {each:8.1f} us = {total / chunks * 1e-3:8.3f} ms"
        )


if __name__ == "__main__":
    main()
