"""Promise 1 over the real layers: a sequence's tokens and logits have the same bits whatever else there is.

Equal logprobs of the 20 best tokens stand for equal logits.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_driver import Driver, Running, make_plan
from tiny import TinyLlama, write_tiny_llama

from tandem.core.requests import SamplingParams, TokenLogprob
from tandem.engine.build import build_engine
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.registry import model_module, spec_from_config

PAGE_TOKENS, CHUNK_TOKENS = 16, 32
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 64, 65, 100)
OUTPUT_TOKENS = 8
SAMPLING = SamplingParams(temperature=0.0, logprobs=20)
TINY = TinyLlama(num_layers=4, tied=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", TINY)


@contextlib.contextmanager
def driver(folder: Path, stages: int, threads: int = 2, seed: int = 0) -> Iterator[Recorder]:
    plan = make_plan(
        layers=TINY.num_layers,
        stages=stages,
        page_tokens=PAGE_TOKENS,
        chunk_tokens=CHUNK_TOKENS,
        total_pages=96,
        context_tokens=192,
    )
    spec = spec_from_config(json.loads((folder / "config.json").read_text()))
    models = [
        model_module(spec.architecture).build_stage(
            spec,
            SafetensorsSource.open(folder),
            stage,
            total_pages=plan.total_pages,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=CHUNK_TOKENS,
            max_slots=plan.max_slots,
            cache_dtype="fp32",
        )
        for stage in plan.stages
    ]
    for model in models:
        model.cache.pool.fill(np.nan)  # type: ignore[attr-defined]  # what is read unwritten shows
    engine = build_engine(
        models, plan, residual_width=spec.residual_width, vocab_size=spec.vocab_size, threads=threads
    )
    try:
        yield Recorder(engine, seed)
    finally:
        engine.shutdown()


class Recorder(Driver):
    """Keeps each sequence's logprobs beside its tokens."""

    def take(self, result) -> None:
        super().take(result)
        for sampled in result.sampled:
            self.sequences[sampled.slot].logprobs += sampled.logprobs

    def start(self, prompt: list[int], **options) -> Running:
        sequence = self.open(prompt, SAMPLING, **options)
        sequence.logprobs = []
        return sequence

    def finish(self, sequence: Running, beside: list[Running] = (), rows: int = 1) -> list[TokenLogprob]:
        """Everything the sequence's first tokens tell about its logits."""
        wanted = OUTPUT_TOKENS - (len(sequence.output) - len(sequence.logprobs))
        self.generate(sequence, OUTPUT_TOKENS, beside, rows)
        return sequence.logprobs[:wanted]


def prompt(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, 256, length)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, list[TokenLogprob]]:
    """Every prompt by itself on one stage."""
    outcomes = {}
    with driver(folder, stages=1) as one:
        for length in LENGTHS:
            sequence = one.start(prompt(length))
            outcomes[length] = one.finish(sequence)
            one.close(sequence)
            one.free_pages[:0] = sequence.pages
    assert len({logprob.token_id for outcome in outcomes.values() for logprob in outcome}) > 20
    return outcomes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_threads_and_pages(folder: Path, alone, stages: int, threads: int) -> None:
    with driver(folder, stages, threads, seed=stages) as cut:
        for length in LENGTHS:
            sequence = cut.start(prompt(length))
            assert cut.finish(sequence) == alone[length]
            cut.close(sequence)
            cut.free_pages[:0] = sequence.pages


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("length", [1, 33, 100])
def test_beside_seven_others(folder: Path, alone, stages: int, length: int) -> None:
    """The others' prompts are computed in the same batches as its rows, and the other way round."""
    with driver(folder, stages) as shared:
        early = [shared.start(prompt(n)) for n in (40, 70, 5)]
        for sequence in early:
            shared.finish(sequence)
        chosen = shared.start(prompt(length))
        late = [shared.start(prompt(n)) for n in (90, 64, 31, 1)]
        assert shared.finish(chosen, beside=[*early, *late]) == alone[length]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("length", [33, 64, 65, 100])
def test_shared_prefix(folder: Path, alone, stages: int, length: int) -> None:
    """Pages of whole chunks before the prompt's end are another sequence's."""
    with driver(folder, stages) as warm:
        first = warm.start(prompt(length))
        warm.finish(first)
        chunks = (length - 1) // CHUNK_TOKENS
        shared = first.pages[: chunks * CHUNK_TOKENS // PAGE_TOKENS]
        second = warm.start(prompt(length), shared_pages=shared)
        assert second.done == chunks * CHUNK_TOKENS > 0
        assert warm.finish(second, beside=[first]) == alone[length]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("rows", range(1, 17))
def test_rows_of_a_replay(folder: Path, alone, stages: int, rows: int) -> None:
    """1 to 16 rows of one sequence in a step, as after a preemption or when a draft is verified."""
    length = 33
    with driver(folder, stages) as replay:
        other = replay.start(prompt(17))
        known = [logprob.token_id for logprob in alone[length]]
        for count in (OUTPUT_TOKENS - 1, 1):
            sequence = replay.start(prompt(length), output=known[:count])
            assert replay.finish(sequence, beside=[other], rows=rows) == alone[length][count:]
            replay.close(sequence)


def test_more_rows_in_a_step_than_a_run_may_have(folder: Path) -> None:
    """One replays 16 rows beside the rows of seven others: 23 rows, one step."""
    known = prompt(36)
    with driver(folder, stages=2) as busy, driver(folder, stages=1) as calm:
        others = [busy.start(prompt(n)) for n in (3, 5, 40, 70, 9, 64, 31)]
        for sequence in others:
            busy.finish(sequence)
        beside = busy.start(known[:20], output=known[20:])
        single = calm.start(known[:20], output=known[20:])
        busy.generate(beside, 18, others, rows=16)
        calm.generate(single, 18)
        assert beside.logprobs[:2] == single.logprobs[:2]
