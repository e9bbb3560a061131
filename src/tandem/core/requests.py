"""What passes between server, api and scheduler: one request, its outputs, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tandem.core.errors import TandemError
from tandem.core.protocols import TokenConstraint


class FinishReason(StrEnum):
    """Why a sequence ended. The first three go to clients as they are (``TOOL_CALLS`` is the server's)."""

    STOP = "stop"
    """An end token, a stop token id or a stop string."""
    LENGTH = "length"
    """``max_tokens`` or the context was reached."""
    CANCELLED = "cancelled"
    """The client went away."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Ranges are checked by the server; these values are final.

    ``temperature`` 0 means greedy. ``seed`` is always resolved (random when the client gave none), so a
    sequence's text depends on the seed and the position alone, never on its neighbours.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int | None = None
    """None = none asked; 0..20 = the sampled token's logprob and so many alternatives. Taken from the raw
    model distribution at temperature 1 (before penalties, bias and filters)."""
    min_tokens: int = 0
    """Until so many tokens are out, ``GenerationRequest.stop_token_ids`` cannot be sampled."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request that says nothing gets: what the model brings along, else OpenAI's values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. ``n`` choices of one HTTP request are n of these."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    """At least one token."""
    sampling: SamplingParams
    max_tokens: int
    """At least 1; already clipped to the context."""
    stop_token_ids: frozenset[int] = frozenset()
    """End tokens of the model (unless ``ignore_eos``) and the request's own ``stop_token_ids``."""
    constraint: TokenConstraint | None = None
    """Grammar or JSON schema; stateful, owned by this sequence."""
    reuse_prefix: bool = True
    guard_loops: bool = True
    """End it where one token comes over and over; not with ``ignore_eos``, which may lead there."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """``top`` holds (token id, natural-log probability) pairs, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One accepted token, as the scheduler hands it to the request's sink.

    ``is_stop_token`` marks an end token: it counts towards no visible text.
    """

    token_id: int
    logprob: TokenLogprob | None
    is_stop_token: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one sequence. ``cached_tokens`` is the part of the prompt that was not recomputed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock milliseconds of one sequence: waiting, first token after admission, the rest."""

    queue_ms: float
    prompt_ms: float
    predicted_ms: float
    prompt_n: int
    """Prompt tokens computed (not taken from the cache)."""
    predicted_n: int
    cached_n: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a sequence; exactly one reaches every sink."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    error: TandemError | None = None


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A consistent picture for ``/health`` and ``/metrics``. Counters only grow; gauges are 0 when idle."""

    running: int = 0
    waiting: int = 0
    total_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    """Held only by the prefix index; evicted on demand."""
    live_pages: int = 0
    """Held by running sequences. free + cached + live = total."""
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    preemptions_total: int = 0
    steps_total: int = 0
    finished_total: dict[str, int] = field(default_factory=dict)
    """By finish reason."""
    last_step_age_s: float = 0.0
    """Seconds since the engine last finished a step while it had work; 0 when idle."""
