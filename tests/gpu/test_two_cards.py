"""A small GLM over two CUDA cards of one process: the tokens of one card, every byte where it is planned."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.gpu.engine_rig import CHUNK, GREEDY, Serving
from tests.gpu.test_glm_engine import PROMPTS
from tests.gpu.test_glm_rows import tokens_of

from tandem.core.batch import Batch, Run, RunKind, SequenceSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA cards"),
]
CARDS = (0, 1)
ROUNDING = 4 << 20
"""What torch's allocator adds to the sizes that are asked for."""


@pytest.fixture(scope="module")
def one():
    """One card; nothing is reused."""
    with Serving(reuse="off") as serving:
        yield serving


@pytest.fixture(scope="module")
def alone(one):
    """Every prompt's answer on one card while nobody else is served."""
    return [one.send(prompt).tokens for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("cuts", "first_card"),
    [((), 1), ((2,), 0), ((3,), 1), ((1, 3), 0)],
    ids=["second card alone", "two cards", "two cards, the second first", "there and back"],
)
def test_answers_are_those_of_one_card(alone, cuts, first_card):
    with Serving(cuts, first_card=first_card) as serving:
        assert [serving.send(prompt).tokens for prompt in PROMPTS] == alone
        beside = [serving.send(prompt) for prompt in PROMPTS]
        assert [answer.tokens for answer in beside] == alone


def test_prefixes_are_reused_on_both_cards(one):
    first = tokens_of(20, 150)
    asked = [first, first, first[:130] + tokens_of(21, 90), first[:64] + tokens_of(22, 3)]
    expected = [one.send(prompt).tokens for prompt in asked]
    with Serving((2,)) as two:
        answers = []
        for prompt in asked:
            answers.append(two.send(prompt))
            assert answers[-1].finish.error is None
        assert [answer.tokens for answer in answers] == expected
        assert [answer.cached_tokens for answer in answers] == [0, 128, 128, 64]


def test_a_state_kept_on_both_cards_comes_back_in_another_slot():
    prompt, rows = tokens_of(60, 2 * CHUNK), tokens_of(61, 5)
    with Serving((2,)) as two:
        pages = tuple(range(40, 56))
        for slot in (0, 5):
            two.engine.open_sequence(slot, SequenceSpec(GREEDY, tuple(prompt), len(prompt)))
        chunks = [
            Run(0, RunKind.PREFILL, tuple(prompt[start : start + CHUNK]), start, pages, sample=False)
            for start in (0, CHUNK)
        ]
        kept = Run(0, RunKind.PREFILL, chunks[1].tokens, CHUNK, pages, sample=False, save_checkpoint=3)
        after = Run(0, RunKind.ROWS, tuple(rows), len(prompt), pages, sample=True)
        again = Run(5, RunKind.ROWS, tuple(rows), len(prompt), pages, sample=True, restore_checkpoint=3)
        cold = Run(5, RunKind.ROWS, tuple(rows), len(prompt), pages, sample=True)
        tokens = []
        for step, run in enumerate((chunks[0], kept, cold, after, again)):
            result = two.engine.submit(Batch(step, (run,))).result(60)
            assert not result.faults
            tokens += [sampled.tokens for sampled in result.sampled]
        without_state, expected, restored = tokens
        assert restored == expected
        assert without_state != expected


def test_every_byte_lies_on_the_card_of_its_layers():
    before = allocated()
    with Serving((2,)) as two:
        assert len(two.send(PROMPTS[3]).tokens) > 1
        found = [now - earlier for now, earlier in zip(allocated(), before, strict=True)]
        terms = two.engine.memory()
        for card, held in zip(CARDS, found, strict=True):
            counted = {term.name: term.bytes for term in terms if term.card == f"cuda:{card}"}
            assert {"weights", "cache", "working"} <= counted.keys()
            assert ("transfer" in counted) == (card == 1)
            kept = counted["weights"] + counted["cache"] + counted.get("transfer", 0)
            assert kept < held < sum(counted.values()) + ROUNDING, (counted, held)


def allocated() -> list[int]:
    """What torch holds on both cards, without the products' libraries' own memory."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return [torch.cuda.memory_allocated(card) for card in CARDS]
