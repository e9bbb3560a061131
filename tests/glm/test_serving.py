"""Greedy answers of a tiny GLM through engine and scheduler: the same whatever is shared, split or beside
them.

Random weights answer differently to almost any change of state, so that equal tokens mean something.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandem.core.requests import FinishReason

from .serving import CHUNK, Serving
from .tiny import Oracle, text_config

Tokens = list[int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Oracle(text_config(), seed=4).save(tmp_path_factory.mktemp("glm"))


def prompt(length: int, seed: int = 0) -> Tokens:
    return random.Random(seed).choices(range(160), k=length)


def cold(folder: Path, prompts: list[Tokens], max_tokens: int = 12) -> list[Tokens]:
    """Each prompt by itself, one after the other, nothing shared."""
    with Serving(folder, reuse="off") as serving:
        return [serving.send(tokens, max_tokens).tokens for tokens in prompts]


@pytest.mark.parametrize(
    "cuts", [(), (3,), (1, 3), (1, 2, 4)], ids=["1 card", "2 cards", "3 cards", "4 cards"]
)
def test_cards_and_company_do_not_change_answers(folder: Path, cuts: tuple[int, ...]) -> None:
    """Eight at once on one to four cards, some with a common beginning; each as if it were alone."""
    stem = prompt(70)
    prompts = [stem[: 10 * i] + prompt(5 + 9 * i, seed=i) for i in range(8)]
    expected = cold(folder, prompts)
    assert len({tuple(tokens) for tokens in expected}) == 8
    with Serving(folder, cuts) as serving:
        answers = [serving.send(tokens) for tokens in prompts]
        assert [answer.tokens for answer in answers] == expected


def test_early_edits_and_branches(folder: Path) -> None:
    """Case K1: a prompt is edited at places on, before and after chunk and page borders."""
    base = prompt(150)
    places = [0, 15, 16, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 149]
    edits = [[*base[:p], (base[p] + 1) % 160, *base[p + 1 :]] for p in places]
    expected = cold(folder, [base, *edits], 4)
    with Serving(folder) as serving:
        assert serving.send(base, 4).tokens == expected[0]
        for place, tokens, right in zip(places, edits, expected[1:], strict=True):
            answer = serving.send(tokens, 4)
            assert answer.tokens == right, place
            assert answer.cached_tokens <= place
        assert serving.send(base, 4).tokens == expected[0]


def test_a_conversation_finds_its_earlier_turns(folder: Path) -> None:
    """Cases K3 and K4: each turn repeats the one before with its answer; two conversations alternate."""
    histories = [prompt(60, seed=1), prompt(75, seed=2)]
    with Serving(folder) as serving:
        for turn in range(4):
            for i in range(2):
                expected = cold(folder, [histories[i]])[0]
                answer = serving.send(histories[i])
                assert answer.tokens == expected
                reusable = (len(histories[i]) - 12 - 20) // CHUNK * CHUNK
                assert turn == 0 or answer.cached_tokens >= reusable > 0
                histories[i] = [*histories[i], *expected, *prompt(20, seed=10 * turn + i)]


def test_tiny_identical_and_page_edge_prompts(folder: Path) -> None:
    """Case K6: each length twice; at least one token is always computed."""
    lengths = [1, 2, 16, 17, 31, 32, 33, 64, 65, 129]
    prompts = [prompt(length, seed=length) for length in lengths]
    expected = cold(folder, prompts, 4)
    with Serving(folder) as serving:
        for tokens, right in zip(prompts, expected, strict=True):
            first, second = (serving.send(tokens, 4) for _ in range(2))
            assert first.tokens == second.tokens == right
            assert second.cached_tokens < len(tokens)
        assert serving.send(prompts[-1], 4).cached_tokens == 128


def test_eviction_and_few_checkpoints(folder: Path) -> None:
    """Case K7: three times as many tokens as pages hold, three checkpoints, then back to the first prompt."""
    prompts = [prompt(100, seed=seed) for seed in range(9)]
    expected = cold(folder, prompts, 5)
    with Serving(folder, total_pages=20, checkpoints=3) as serving:
        for _ in range(2):
            answers = [serving.send(tokens, 5) for tokens in prompts]
            assert [answer.tokens for answer in answers] == expected
        stats = serving.scheduler.stats()
    assert stats.free_pages + stats.cached_pages == 20


def test_cancelled_prompts_leave_usable_state_behind(folder: Path) -> None:
    base = prompt(400, seed=3)
    expected = cold(folder, [base], 6)[0]
    with Serving(folder) as serving:
        for _ in range(4):
            cut = serving.send(base, 200)
            serving.cancel_last()
            assert cut.finish.reason is FinishReason.CANCELLED
        assert serving.send(base, 6).tokens == expected


def test_preempted_sequences_replay_in_rows(folder: Path) -> None:
    """Too few pages for all: some lose theirs and later repeat what they had said, sixteen rows at a time."""
    prompts = [prompt(75, seed=seed) for seed in range(4)]
    expected = cold(folder, prompts, 40)
    with Serving(folder, total_pages=20) as serving:
        answers = [serving.send(tokens, 40) for tokens in prompts]
        assert [answer.tokens for answer in answers] == expected
        assert serving.scheduler.stats().preemptions_total > 0


def test_fast_reuse_goes_on_from_the_state_that_decoding_made(folder: Path) -> None:
    """The first token after a reused answer is the cold run's; later ones may part, as it is approximate."""
    question = prompt(45)
    with Serving(folder, reuse="fast", cache="fp32") as serving:
        answer = serving.send(question, 60).tokens
        follow_ups = [[*question, *answer, *prompt(n, seed=n)] for n in (1, 9, 40)]
        warm = [serving.send(tokens, 1) for tokens in follow_ups]
        assert [reply.cached_tokens for reply in warm] == [96] * 3
        heads = [reply.tokens for reply in warm]
    with Serving(folder, reuse="off", cache="fp32") as serving:
        assert [serving.send(tokens, 1).tokens for tokens in follow_ups] == heads
