"""A scripted engine behind the real scheduler and server: it emits chosen tokens, slowly, or breaks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import stub_model

from tandem.core.batch import Batch, EngineLimits, Run, RunKind, Sampled, SequenceSpec, SlotFault, StepResult
from tandem.core.requests import TokenLogprob
from tandem.text.bundle import TextBundle

LIMITS = EngineLimits(
    page_tokens=16,
    chunk_tokens=64,
    total_pages=1024,
    max_slots=4,
    max_step_rows=16,
    context_tokens=4096,
    pipeline_depth=1,
)


@dataclass(frozen=True)
class Script:
    """What one sequence emits, token by token; an end token follows unless ``ends`` is False.

    A piece of type bytes is one token if the vocabulary has it, else one token a byte; a str holds control
    tokens and ordinary text.
    """

    pieces: tuple[bytes | str, ...] = ()
    ends: bool = True
    repeats: bool = False
    """Go round for ever."""
    noise: int = 0
    """Instead of pieces: so many letters drawn by the sequence's seed (greedy: always the same)."""
    token_delay_s: float = 0.0
    prefill_delay_s: float = 0.0
    slot_fault_at: int | None = None
    impossible_at: int | None = None
    """At this token nothing that the request allows is left."""
    engine_fault_at: int | None = None
    stall_at: int | None = None
    """At this token the engine hangs until ``ScriptedEngine.release``."""


def say(text: str | bytes, **options: object) -> Script:
    """A script that spells ``text`` one byte a token."""
    raw = text.encode() if isinstance(text, str) else text
    return replace(Script(tuple(bytes([byte]) for byte in raw)), **options)  # type: ignore[arg-type]


@dataclass
class _Live:
    spec: SequenceSpec
    script: Script
    tokens: list[int]
    count: int
    generator: random.Random = field(default_factory=random.Random)


class ScriptedEngine:
    """core.protocols.StepEngine. The script whose key occurs last in the prompt, else that of ""."""

    def __init__(
        self, text: TextBundle, scripts: Mapping[str, Script], limits: EngineLimits = LIMITS
    ) -> None:
        self.limits = limits
        self.prompts: list[str] = []
        self.sampling: list[SequenceSpec] = []
        self.release = threading.Event()
        self.closed = False
        self._text = text
        self._scripts = dict(scripts)
        self._live: dict[int, _Live] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="stub-engine")

    def open_sequence(self, slot: int, spec: SequenceSpec) -> None:
        prompt = self._text.tokenizer.decode(spec.history[: spec.prompt_length])
        self.prompts.append(prompt)
        self.sampling.append(spec)
        script = self._script_for(prompt)
        tokens = [token for piece in script.pieces for token in stub_model.token_ids(self._text, piece)]
        self._live[slot] = _Live(spec, script, tokens, len(spec.history) - spec.prompt_length)

    def _script_for(self, prompt: str) -> Script:
        found = {key: prompt.rfind(key) for key in self._scripts if key}
        key = max(found, key=lambda key: (found[key], len(key)), default="")
        return self._scripts[key if found.get(key, -1) >= 0 else ""]

    def close_sequence(self, slot: int) -> None:
        del self._live[slot]

    def submit(self, batch: Batch) -> Future[StepResult]:
        return self._worker.submit(self._execute, batch)

    def shutdown(self) -> None:
        self.closed = True
        self.release.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _execute(self, batch: Batch) -> StepResult:
        sampled: list[Sampled] = []
        faults: list[SlotFault] = []
        pause_s = 0.0
        for run in batch.runs:
            live = self._live[run.slot]
            pause_s = max(pause_s, self._pause(live, run))
            if not run.sample:
                continue
            if live.count == live.script.stall_at:
                self.release.wait()
            if live.count == live.script.engine_fault_at:
                raise RuntimeError("the scripted engine broke")
            if live.count == live.script.slot_fault_at:
                faults.append(SlotFault(run.slot, "logits are not finite"))
                continue
            if live.count == live.script.impossible_at:
                faults.append(SlotFault(run.slot, "No token is left to sample", asked_for=True))
                continue
            token = self._next_token(live)
            live.count += 1
            sampled.append(Sampled(run.slot, (token,), (self._logprob(live.spec, token),)))
        if pause_s:
            time.sleep(pause_s)
        return StepResult(batch.step, tuple(sampled), tuple(faults))

    @staticmethod
    def _pause(live: _Live, run: Run) -> float:
        return live.script.prefill_delay_s if run.kind is RunKind.PREFILL else live.script.token_delay_s

    def _next_token(self, live: _Live) -> int:
        token = self._wanted(live)
        banned = {index for index, bias in live.spec.sampling.logit_bias if bias <= -100}
        if token in banned:
            token = next(index for index in range(ord("A"), 256) if index not in banned)
        constraint = live.spec.constraint
        if constraint is not None:
            token = self._allowed(constraint.token_mask(), token, live.count)
            constraint.accept(token)
        return token

    def _wanted(self, live: _Live) -> int:
        end = stub_model.token_ids(self._text, stub_model.END)[0]
        script = live.script
        if script.noise:
            if live.count >= script.noise:
                return end
            sampling = live.spec.sampling
            seed = 0 if sampling.temperature == 0 else sampling.seed
            return random.Random(f"{seed}/{live.count}").randrange(ord("a"), ord("z") + 1)
        if live.count < len(live.tokens):
            return live.tokens[live.count]
        if script.repeats:
            return live.tokens[live.count % len(live.tokens)]
        return end if script.ends else ord(".")

    def _allowed(self, mask: bytes | None, token: int, count: int) -> int:
        """The script's token where the grammar allows it, else in turn one of those that may end things."""

        def ok(index: int) -> bool:
            return mask is None or (index // 8 < len(mask) and bool(mask[index // 8] >> (index % 8) & 1))

        end = stub_model.token_ids(self._text, stub_model.END)[0]
        preferred = next((index for index in (token, end) if ok(index)), None)
        if preferred is not None:
            return preferred
        tags = [stub_model.token_ids(self._text, tag)[0] for tag in ("</arg_value>", "</tool_call>")]
        closing = [index for index in (*b'"}],:', *tags) if ok(index)]
        others = (index for index in range(self._text.tokenizer.vocab_size) if ok(index))
        return closing[count % len(closing)] if closing else next(others)

    def _logprob(self, spec: SequenceSpec, token: int) -> TokenLogprob | None:
        asked = spec.sampling.logprobs
        if asked is None:
            return None
        others = [index for index in range(ord("a"), 256) if index != token]
        ranked = [token, *others][:asked]
        return TokenLogprob(token, -0.25, tuple((index, -0.25 - n) for n, index in enumerate(ranked)))
