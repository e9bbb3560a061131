"""What a request cost, as OpenAI's ``usage`` and llama.cpp's ``timings``."""

from __future__ import annotations

from typing import Any

from tandem.server.generation import Generation


def usage_of(generation: Generation) -> dict[str, Any]:
    """Each prompt counts once, whatever ``n``; its cached part is that of its first choice."""
    prompt_tokens = cached_tokens = completion_tokens = reasoning_tokens = 0
    counted: set[int] = set()
    for choice in generation.choices:
        ended = generation.ended.get(choice.index)
        if ended is None:
            continue
        usage = ended.finish.usage
        completion_tokens += usage.completion_tokens
        reasoning_tokens += ended.reasoning_tokens
        if choice.prompt_index not in counted:
            counted.add(choice.prompt_index)
            prompt_tokens += usage.prompt_tokens
            cached_tokens += usage.cached_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def timings_of(generation: Generation) -> dict[str, Any]:
    """Milliseconds of the slowest choice; token counts of all of them together."""
    timings = [ended.finish.timings for ended in generation.ended.values()]
    prompt_ms = max((timing.prompt_ms for timing in timings), default=0.0)
    predicted_ms = max((timing.predicted_ms for timing in timings), default=0.0)
    prompt_n = sum(timing.prompt_n for timing in timings)
    predicted_n = sum(timing.predicted_n for timing in timings)
    return {
        "queue_ms": round(max((timing.queue_ms for timing in timings), default=0.0), 3),
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_second": _rate(prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_second": _rate(predicted_n, predicted_ms),
        "cached_n": sum(timing.cached_n for timing in timings),
    }


def _rate(count: int, milliseconds: float) -> float:
    return round(count * 1000 / milliseconds, 2) if milliseconds > 0 else 0.0
