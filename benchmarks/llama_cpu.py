"""Decode and prefill of a Llama-like GGUF model on the CPU, beside transformers in the same run.

    python benchmarks/llama_cpu.py MODEL.gguf [--repeats 5] [--out benchmarks/results/llama_cpu.json]

Both read the same file; transformers dequantizes it to fp32. The stage is driven as the engine drives it,
without scheduler, sampling and server. Rounds alternate between the two, so that other load on the machine
meets both. Writes the record; standard output is the record as one line.

Next to each rate stands its ceiling: weights in memory / measured read bandwidth for single-stream decode,
multiply-adds / measured peak of fp32 products for prefill.
"""

# ruff: noqa: E402 - OpenMP is settled as in a command, before torch and numba load it
from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tandem.core.process import settle_process

settle_process()

import numba
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.plan import GIB, Card, StagePlan
from tandem.loader.gguf import GgufSource
from tandem.models.llama.model import LlamaStage, build_stage
from tandem.models.registry import spec_from_gguf

PAGE_TOKENS = 64
PROMPT_TOKENS = 1024
SHORT_TOKENS = 64
STEPS = 24
STREAMS = 8


class Stage:
    """The whole model as one stage with room for STREAMS sequences."""

    def __init__(self, path: Path, chunk_tokens: int) -> None:
        source = GgufSource.open(path)
        self.spec = spec_from_gguf(source.metadata)
        self.chunk_tokens = chunk_tokens
        pages = -(-(PROMPT_TOKENS + 4 * STEPS) // PAGE_TOKENS)
        whole = StagePlan(Card("cpu", 0, 64 * GIB), 0, self.spec.num_layers, True, True)
        self.model: LlamaStage = build_stage(
            self.spec,
            source,
            whole,
            total_pages=STREAMS * pages,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=chunk_tokens,
            max_slots=STREAMS,
            cache_dtype="fp32",
        )
        self.tables = torch.arange(STREAMS * pages, dtype=torch.int32).reshape(STREAMS, pages)

    def prefill(self, tokens: list[int], start: int = 0, sequence: int = 0) -> torch.Tensor:
        C = self.chunk_tokens
        for first in range(start, len(tokens), C):
            part = tokens[first : first + C]
            padded = torch.tensor(part + [0] * (C - len(part)))
            layout = PrefillLayout(0, first, len(part), C, self.tables[sequence], padded)
            hidden = self.model.forward_prefill(self.model.embed(padded), layout)
        return self.model.logits(hidden[len(part) - 1 : len(part)].contiguous())

    def decode(self, streams: int, position: int) -> torch.Tensor:
        numbers = torch.arange(streams, dtype=torch.int32)
        layout = RowsLayout(
            torch.full((streams,), 7),
            torch.full((streams,), position, dtype=torch.int32),
            numbers,
            torch.arange(streams + 1, dtype=torch.int32),
            numbers,
            self.tables[:streams],
        )
        return self.model.logits(self.model.forward_rows(self.model.embed(layout.token_ids), layout))


class Reference:
    """transformers, fp32, with its own cache."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> DynamicCache:
        cache = DynamicCache(config=self.model.config)
        self.model(torch.tensor([tokens]), past_key_values=cache, logits_to_keep=1)
        return cache

    @torch.inference_mode()
    def decode(self, cache: DynamicCache) -> None:
        self.model(torch.tensor([[7]]), past_key_values=cache)

    @torch.inference_mode()
    def generate_seconds_per_token(self, tokens: list[int]) -> float:
        """``generate`` itself, its own prefill taken off."""
        prompt = torch.tensor([tokens])
        options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        short = seconds(lambda: self.model.generate(prompt, max_new_tokens=1, **options))
        long = seconds(lambda: self.model.generate(prompt, max_new_tokens=1 + STEPS, **options))
        return (long - short) / STEPS


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read_bandwidth_bytes_per_s() -> float:
    data = np.ones(64 * 2**20, np.float32)
    tensor = torch.from_numpy(data)
    return data.nbytes / min(seconds(lambda: tensor.sum()) for _ in range(7))


def peak_multiply_adds_per_s() -> float:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 1024**3 / min(seconds(lambda: a @ b) for _ in range(15))


def measure(stage: Stage, reference: Reference, repeats: int) -> dict[str, list[float]]:
    vocabulary = stage.spec.vocab_size
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, vocabulary, PROMPT_TOKENS)]
    short = prompt[:SHORT_TOKENS]
    last_chunk = (PROMPT_TOKENS - 1) // stage.chunk_tokens * stage.chunk_tokens
    for sequence in range(STREAMS):
        stage.prefill(short, sequence=sequence)
    for streams in (1, 2, 4, STREAMS):
        stage.decode(streams, SHORT_TOKENS)
    stage.prefill(prompt)
    reference.prefill(short)
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for _ in range(repeats):
        for streams in (1, 2, 4, STREAMS):
            for i in range(STEPS):
                note(f"decode_{streams}_ms", 1e3 * seconds(lambda n=streams, i=i: stage.decode(n, 64 + i)))
        note("transformers_generate_1_ms", 1e3 * reference.generate_seconds_per_token(short))
        cache = reference.prefill(short)
        for _ in range(STEPS):
            note("transformers_forward_1_ms", 1e3 * seconds(lambda c=cache: reference.decode(c)))
        note("prefill_ms", 1e3 * seconds(lambda: stage.prefill(prompt)))
        note("repeated_prompt_ms", 1e3 * seconds(lambda: stage.prefill(prompt, start=last_chunk)))
        note("transformers_prefill_ms", 1e3 * seconds(lambda: reference.prefill(prompt)))
    return samples


def summary(stage: Stage, ms: dict[str, float]) -> dict[str, float]:
    spec = stage.spec
    attention = spec.hidden_size * spec.head_dim * (2 * spec.heads + 2 * spec.kv_heads)  # type: ignore[attr-defined]
    mlp = 3 * spec.hidden_size * spec.intermediate_size  # type: ignore[attr-defined]
    per_token = spec.num_layers * (attention + mlp)
    bandwidth, peak = read_bandwidth_bytes_per_s(), peak_multiply_adds_per_s()
    return {
        "decode_1_tokens_per_s": 1e3 / ms["decode_1_ms"],
        "decode_8_tokens_per_s": 8e3 / ms["decode_8_ms"],
        "decode_1_times_transformers_generate": ms["transformers_generate_1_ms"] / ms["decode_1_ms"],
        "decode_8_times_decode_1": 8 * ms["decode_1_ms"] / ms["decode_8_ms"],
        "prefill_tokens_per_s": 1e3 * PROMPT_TOKENS / ms["prefill_ms"],
        "prefill_times_transformers": ms["transformers_prefill_ms"] / ms["prefill_ms"],
        "repeated_prompt_part_of_cold": ms["repeated_prompt_ms"] / ms["prefill_ms"],
        "weights_bytes": stage.model.weight_bytes,
        "read_bandwidth_gb_per_s": bandwidth / 1e9,
        "decode_1_part_of_bandwidth": stage.model.weight_bytes / bandwidth / (ms["decode_1_ms"] / 1e3),
        "peak_gflop_per_s": 2 * peak / 1e9,
        "prefill_part_of_peak": PROMPT_TOKENS * per_token / peak / (ms["prefill_ms"] / 1e3),
    }


def machine() -> dict[str, object]:
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "cpu": cpu,
        "cores": numba.config.NUMBA_NUM_THREADS,
        "load_1_minute": float(Path("/proc/loadavg").read_text().split()[0]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
        "transformers": transformers.__version__,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/llama_cpu.json"))
    options = parser.parse_args()
    facts = machine()
    stage = Stage(options.model, options.chunk_tokens)
    samples = measure(stage, Reference(options.model), options.repeats)
    ms = {name: statistics.median(values) for name, values in samples.items()}
    record = {
        "benchmark": "llama_cpu",
        "command": f"python benchmarks/llama_cpu.py {options.model.name} --repeats {options.repeats} "
        f"--chunk-tokens {options.chunk_tokens}",
        "model": options.model.name,
        "chunk_tokens": options.chunk_tokens,
        "machine": facts,
        "median_ms": ms,
        "least_ms": {name: min(values) for name, values in samples.items()},
        "summary": summary(stage, ms),
        "peak_resident_bytes_with_transformers": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
