"""Nothing beside a row changes its bits: rows of a step, stages, chunks, padding, neighbours, page order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llama_rig import CHUNK_TOKENS, LlamaRig, random_tokens
from tiny import TinyLlama, write_tiny_llama

VOCAB = TinyLlama().vocab_size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", TinyLlama(dtype=torch.bfloat16))


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8, 13])
def test_rows_beside_others(folder: Path, runs: int) -> None:
    prompts = [random_tokens(20 + 7 * i, VOCAB, seed=i) for i in range(runs)]
    alone = []
    for prompt in prompts:
        rig = LlamaRig(folder)
        rig.prefill(prompt)
        alone.append(rig.step([(0, len(prompt), [5])]))
    rig = LlamaRig(folder, sequences=runs)
    for i, prompt in enumerate(prompts):
        rig.prefill(prompt, sequence=i)
    together = rig.step([(i, len(prompt), [5]) for i, prompt in enumerate(prompts)])
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("count", [2, 7, 16])
def test_rows_of_one_run_equal_single_steps(folder: Path, count: int) -> None:
    prompt, more = random_tokens(33, VOCAB), random_tokens(count, VOCAB, seed=9)
    one, many = LlamaRig(folder), LlamaRig(folder)
    one.prefill(prompt)
    many.prefill(prompt)
    singles = torch.cat([one.step([(0, 33 + i, [token])]) for i, token in enumerate(more)])
    assert torch.equal(many.step([(0, 33, more)]), singles)


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2)], ids=str)
def test_stages(folder: Path, cuts: tuple[int, ...]) -> None:
    prompt = random_tokens(100, VOCAB)
    whole, cut = LlamaRig(folder), LlamaRig(folder, cuts=cuts)
    assert torch.equal(cut.prefill(prompt), whole.prefill(prompt))
    assert torch.equal(cut.step([(0, 100, [3, 4])]), whole.step([(0, 100, [3, 4])]))


def test_tail_and_padding_leave_a_prefix_alone(folder: Path) -> None:
    prefix = random_tokens(CHUNK_TOKENS + 17, VOCAB)
    expected = LlamaRig(folder).prefill(prefix)
    for tail, padding in ((0, 200), (1, 3), (29, 0), (150, 7)):
        tokens = prefix + random_tokens(tail, VOCAB, seed=tail)
        found = LlamaRig(folder).prefill(tokens, padding=padding)
        assert torch.equal(found[: len(prefix)], expected)


def test_resuming_at_a_chunk_gives_the_bits_of_a_cold_run(folder: Path) -> None:
    tokens = random_tokens(3 * CHUNK_TOKENS + 5, VOCAB)
    rig = LlamaRig(folder)
    cold = rig.prefill(tokens)
    for start in (CHUNK_TOKENS, 3 * CHUNK_TOKENS):
        assert torch.equal(rig.prefill(tokens, start=start), cold[start:])


def test_chunks_and_single_steps_agree_bit_for_bit(folder: Path) -> None:
    tokens = random_tokens(90, VOCAB)
    chunks = LlamaRig(folder).prefill(tokens)
    rig = LlamaRig(folder)
    steps = torch.cat([rig.step([(0, p, [token])]) for p, token in enumerate(tokens)])
    assert torch.equal(chunks, steps)
