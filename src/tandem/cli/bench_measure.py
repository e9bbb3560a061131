"""What ``tandem bench`` measures, over HTTP, so that a record holds for the served product."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tandem.cli.client import Answer
from tandem.cli.endpoint import Endpoint
from tandem.core.errors import SettingsError, TandemError

_WORDS = (
    "river", "stone", "garden", "copper", "winter", "letter", "engine", "silver",
    "morning", "window", "market", "bridge", "forest", "candle", "island", "harbor",
    "meadow", "thunder", "paper", "valley", "lantern", "orchard", "cellar", "mirror",
    "anchor", "basket", "feather", "hammer",
)  # fmt: skip
_SHORT_PROMPT_TOKENS = 16
_BANDWIDTH_BYTES = 512 << 20
_BANDWIDTH_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Workload:
    prompt_tokens: int
    decode_tokens: int
    streams: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Repeats of one quantity; the median is what counts."""

    name: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def as_dict(self) -> dict[str, Any]:
        return {"unit": self.unit, "median": self.median, "samples": list(self.samples)}


def measure(endpoint: Endpoint, workload: Workload) -> list[Measurement]:
    """Run the workload after one warm-up request. Raises TandemError if the answers do not add up."""
    prompts = _Prompts(endpoint, workload)
    _complete(endpoint, prompts.short(), 4)
    decode = [_complete(endpoint, prompts.short(), workload.decode_tokens) for _ in range(workload.repeats)]
    cold, warm = [], []
    for _ in range(workload.repeats):
        prompt = prompts.long()
        cold.append(_complete(endpoint, prompt, 2))
        warm.append(_complete(endpoint, prompt, 2))
    together = [_together(endpoint, prompts, workload) for _ in range(workload.repeats)]
    long, streams = f"{workload.prompt_tokens} tokens", f"{workload.streams} streams"
    prefill = [answer.timings["prompt_n"] / answer.timings["prompt_ms"] * 1000 for answer in cold]
    return [
        Measurement("decode, 1 stream", "tokens/s", tuple(map(_decode_rate, decode))),
        Measurement(f"decode, {streams} together", "tokens/s", tuple(total for total, _ in together)),
        Measurement(f"decode, each of {streams}", "tokens/s", tuple(each for _, each in together)),
        Measurement(f"prefill, {long}", "tokens/s", tuple(prefill)),
        Measurement(f"first token, {long}", "ms", tuple(answer.first_piece_ms for answer in cold)),
        Measurement("first token, same prompt", "ms", tuple(answer.first_piece_ms for answer in warm)),
    ]


def read_bandwidth(device: str) -> float:
    """Bytes a second that all threads (or one CUDA card) read from memory: the best of a few sums."""
    import torch

    values = torch.ones(_BANDWIDTH_BYTES // 4, dtype=torch.float32, device=device)
    best = float("inf")
    for _ in range(_BANDWIDTH_REPEATS):
        started = time.perf_counter()
        values.sum().item()
        best = min(best, time.perf_counter() - started)
    return _BANDWIDTH_BYTES / best


class _Prompts:
    """Fresh prompts of an exact number of tokens; none shares a prefix with another."""

    def __init__(self, endpoint: Endpoint, workload: Workload) -> None:
        self._endpoint = endpoint
        self._long_tokens = workload.prompt_tokens
        self._random = random.Random(time.time_ns())
        room = self._tokenize(1)["max_model_len"]
        needed = max(workload.prompt_tokens + 2, _SHORT_PROMPT_TOKENS + workload.decode_tokens)
        if needed > room:
            raise SettingsError(
                f"The workload needs {needed} tokens of context",
                found=f"{room} are served",
                remedy="lower --prompt-tokens or --decode-tokens",
            )

    def short(self) -> list[int]:
        return self._tokens(_SHORT_PROMPT_TOKENS)

    def long(self) -> list[int]:
        return self._tokens(self._long_tokens)

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._tokenize(count)["tokens"]
        return tokens[:count]

    def _tokenize(self, words: int) -> dict[str, Any]:
        text = " ".join(self._random.choice(_WORDS) for _ in range(words))
        return self._endpoint.client.post("/tokenize", {"model": self._endpoint.model, "prompt": text})


def _complete(endpoint: Endpoint, prompt: Sequence[int], max_tokens: int) -> Answer:
    answer = Answer()
    body = {
        "model": endpoint.model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    for _ in endpoint.client.stream("/v1/completions", body, answer):
        pass
    if not answer.timings:
        raise TandemError("The server reports no timings", remedy="bench a server of Tandem")
    if answer.timings["predicted_n"] != max_tokens:
        raise TandemError(
            f"The server generated {answer.timings['predicted_n']} tokens of {max_tokens}",
            found=str(answer.finish_reason),
        )
    return answer


def _decode_rate(answer: Answer) -> float:
    """The first token belongs to the prompt's time."""
    return float((answer.timings["predicted_n"] - 1) / answer.timings["predicted_ms"] * 1000)


def _together(endpoint: Endpoint, prompts: _Prompts, workload: Workload) -> tuple[float, float]:
    """All streams' tokens over the wall time, and the median rate of one stream among them."""
    batch = [prompts.short() for _ in range(workload.streams)]
    with ThreadPoolExecutor(workload.streams) as pool:
        started = time.perf_counter()
        answers = list(pool.map(lambda prompt: _complete(endpoint, prompt, workload.decode_tokens), batch))
        seconds = time.perf_counter() - started
    total = sum(answer.timings["predicted_n"] for answer in answers)
    return total / seconds, statistics.median(map(_decode_rate, answers))
