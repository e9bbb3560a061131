"""GLM's prefill chunks on a card against its rows, which are held against the CPU's reference path."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.gpu.cards import CUBINS
from tests.gpu.glm_rig import OnCard
from tests.gpu.test_glm_rows import tokens_of

from tandem.models.glm5_next.rehearsal_spec import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]
EVERY_EXPERT = dataclasses.replace(SMALL, num_experts=4)
"""Every expert is chosen, so that no tie of the router flips."""


@pytest.fixture(scope="module")
def cubins():
    return CUBINS


def error(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.mark.parametrize(("length", "eight_bit"), [(60, False), (150, False), (300, False), (100, True)])
def test_a_prompt_equals_its_rows_and_is_continued_by_them(cubins, length, eight_bit):
    rows = OnCard(cubins, eight_bit=eight_bit, spec=EVERY_EXPERT)
    chunks = OnCard(cubins, eight_bit=eight_bit, spec=EVERY_EXPERT)
    tokens = tokens_of(2, length + 12)
    expected = [rows.step([(1, i, tokens[i : i + 10])]) for i in range(0, length, 10)]
    prompt = error(chunks.prefill(1, tokens[:length], 64), torch.cat(expected))
    assert prompt.isfinite().all()
    continued = []
    for i in range(length, length + 12, 4):
        step = [(1, i, tokens[i : i + 4])]
        continued.append(error(chunks.step(step), rows.step(step)))
    after = torch.cat(continued)
    print(length, eight_bit, float(prompt.median()), float(prompt.max()), float(after.median()))
    assert prompt[:64].max() < (1e-2 if not eight_bit else 3e-2)
    assert prompt.median() < 1e-2
    assert after.median() < 1e-2


def test_the_routed_experts_of_a_chunk_equal_those_of_its_rows(cubins):
    rows, chunks = OnCard(cubins), OnCard(cubins)
    tokens = tokens_of(3, 48)
    expected = torch.cat([rows.step([(0, i, tokens[i : i + 8])]) for i in range(0, 48, 8)])
    found = error(chunks.prefill(0, tokens, 64), expected)
    print("routed", float(found.median()), float(found.max()))
    assert found.median() < 3e-2  # a router's tie may flip in fp16 and reach the rows after it


def test_a_chunk_may_be_any_number_of_whole_pools(cubins):
    tokens = tokens_of(5, 150)
    found, expected = (OnCard(cubins, spec=EVERY_EXPERT).prefill(0, tokens, chunk) for chunk in (20, 64))
    assert error(found, expected).median() < 1e-2


def test_a_prompts_bits_do_not_depend_on_where_it_ends(cubins):
    tokens = tokens_of(4, 100)
    longer, shorter = OnCard(cubins).prefill(0, tokens, 64), OnCard(cubins).prefill(0, tokens[:70], 64)
    assert torch.equal(longer[:70], shorter)


def test_scores_of_some_rows_at_a_time_choose_the_same_pools(cubins):
    """150 tokens are 37 pools of which 16 are chosen: pieces of 48 and 16 rows, then of 16."""
    tokens = tokens_of(6, 150)
    whole = OnCard(cubins).prefill(0, tokens, 64)
    for scores_bytes in (50 * 4 * 48, 1):
        assert torch.equal(OnCard(cubins).prefill(0, tokens, 64, scores_bytes=scores_bytes), whole)


def test_an_embedding_table_in_host_memory_gives_the_same_bits(cubins):
    tokens = tokens_of(7, 100)
    card, host = OnCard(cubins), OnCard(cubins, embedding_on_host=True)
    assert card.stage.embedding.is_cuda
    assert host.stage.embedding.is_pinned()
    assert card.stage.weight_bytes - host.stage.weight_bytes == card.stage.embedding.nbytes
    assert torch.equal(host.prefill(0, tokens, 64), card.prefill(0, tokens, 64))
    assert torch.equal(host.step([(1, 0, tokens[:4])]), card.step([(1, 0, tokens[:4])]))
