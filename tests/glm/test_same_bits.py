"""Promise 1 on the model: nothing beside a row changes its bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.core.errors import BudgetError
from tandem.kernels.jit import use_threads

from .rig import PAGE_TOKENS, Rig, build_stages
from .tiny import Oracle, text_config

CHUNK = 32
PROMPT, END = 150, 190
"""Beyond index_topk = 64, so that selection is sparse."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Oracle(text_config(), seed=1).save(tmp_path_factory.mktemp("glm"))


def tokens(count: int, seed: int = 0) -> torch.Tensor:
    """A sequence by its seed; a shorter one is the beginning of a longer one."""
    return torch.randint(160, (END + 20,), generator=torch.Generator().manual_seed(seed))[:count]


def rig(folder: Path, cuts: tuple[int, ...] = (), cache: str = "q8") -> Rig:
    return Rig(build_stages(folder, cuts, chunk_tokens=CHUNK, cache=cache), chunk_tokens=CHUNK)


def cold(folder: Path, ids: torch.Tensor, prompt: int = PROMPT, cache: str = "q8") -> torch.Tensor:
    """Logits of a sequence by itself on one stage: prompt, then single steps."""
    alone = rig(folder, cache=cache)
    alone.open(2, len(ids))
    logits = [alone.prefill(2, ids[:prompt])]
    if prompt < len(ids):
        logits.append(alone.steps(2, ids, prompt))
    return torch.cat(logits)


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    """The sequence most tests compare with."""
    use_threads(1)
    with torch.inference_mode():
        return cold(folder, tokens(END))


@pytest.mark.parametrize("cache", ["fp32", "fp16", "q8"])
@pytest.mark.parametrize("cuts", [(2,), (1, 3), (1, 2, 4)], ids=["2 stages", "3 stages", "4 stages"])
def test_number_of_stages(folder: Path, cuts: tuple[int, ...], cache: str) -> None:
    ids = tokens(PROMPT + 10)
    split = rig(folder, cuts, cache)
    split.open(0, len(ids))
    found = torch.cat((split.prefill(0, ids[:PROMPT]), split.steps(0, ids, PROMPT)))
    assert torch.equal(found, cold(folder, ids, cache=cache))


def test_beside_seven_others(folder: Path) -> None:
    sequences = [tokens(40 + 17 * slot, seed=slot) for slot in range(8)]
    together = rig(folder)
    for slot, ids in enumerate(sequences):
        together.open(slot, len(ids))
        together.prefill(slot, ids[:-8])
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    rows = [1 + slot % 2 for slot in range(8)]  # some take two rows a step, some one
    for step in range(8):
        runs = [
            (slot, start, ids[start : start + rows[slot]])
            for slot, ids in enumerate(sequences)
            if (start := len(ids) - 8 + step * rows[slot]) < len(ids)
        ]
        for (slot, _, _), logits in zip(runs, together.rows(runs), strict=True):
            found[slot].append(logits)
    for slot, ids in enumerate(sequences):
        assert torch.equal(torch.cat(found[slot]), cold(folder, ids, len(ids) - 8)[-8:])


@pytest.mark.parametrize("accepted", range(17))
def test_rejected_rows_leave_no_trace(folder: Path, accepted: int, expected: torch.Tensor) -> None:
    """A verify step of 16 rows of which ``accepted`` are right, then single steps."""
    ids = tokens(END)[: PROMPT + accepted + 6]
    draft = ids[PROMPT : PROMPT + 16].clone()
    draft[accepted:] = (draft[accepted:] + 1) % 160
    verify = rig(folder)
    verify.open(1, len(ids))
    verify.prefill(1, ids[:PROMPT])
    checked = verify.rows([(1, PROMPT, draft)])[0]
    assert torch.equal(checked[:accepted], expected[PROMPT : PROMPT + accepted])
    rest = verify.steps(1, ids, PROMPT + accepted)
    assert torch.equal(rest, expected[PROMPT + accepted : len(ids)])


def test_verify_steps_one_after_another(folder: Path, expected: torch.Tensor) -> None:
    ids = tokens(END)
    verify = rig(folder)
    verify.open(1, END + 16)
    verify.prefill(1, ids[:PROMPT])
    position = PROMPT
    for rows, accepted in ((16, 5), (3, 0), (7, 7), (16, 1), (1, 1), (16, 16), (4, 2)):
        draft = ids[position : position + rows].clone()
        draft[accepted:] = (draft[accepted:] + 3) % 160
        logits = verify.rows([(1, position, draft)])[0]
        assert torch.equal(logits[:accepted], expected[position : position + accepted])
        position += accepted
    assert torch.equal(verify.steps(1, ids, position), expected[position:])


@pytest.mark.parametrize("cuts", [(), (3,)])
def test_resuming_from_a_checkpoint(folder: Path, cuts: tuple[int, ...]) -> None:
    """Another sequence continues where the first was after two chunks, on shared pages."""
    shared = 2 * CHUNK
    first, second = tokens(PROMPT, seed=1), tokens(PROMPT, seed=2)
    second[:shared] = first[:shared]
    warm = rig(folder, cuts)
    pages = warm.open(0, PROMPT)
    warm.prefill(0, first[:shared])
    for stage in warm.stages:
        stage.save_state(0, 4)
    warm.prefill(0, first, start=shared)
    warm.steps(0, tokens(PROMPT + 6), PROMPT)  # leaves rows pending; the checkpoint must not care
    warm.open(5, PROMPT + 10, shared=pages[: shared // PAGE_TOKENS])
    for stage in warm.stages:
        stage.restore_state(5, 4)
    resumed = warm.prefill(5, second, start=shared)
    assert torch.equal(resumed, cold(folder, second)[shared:])


def test_a_slot_used_again_starts_clean(folder: Path) -> None:
    used = rig(folder)
    used.open(2, PROMPT + 16)
    used.prefill(2, tokens(PROMPT, seed=9))
    used.rows([(2, PROMPT, tokens(16, seed=10))])
    used.close(2)
    ids = tokens(PROMPT + 3)
    used.open(2, len(ids))
    found = torch.cat((used.prefill(2, ids[:PROMPT]), used.steps(2, ids, PROMPT)))
    assert torch.equal(found, cold(folder, ids))


@pytest.mark.parametrize("end", [1, 2, 3, 4, 31, 32, 33, 63, 65, 100, 127, 149])
def test_a_prompts_end_does_not_change_what_comes_before(folder: Path, end: int) -> None:
    ids = tokens(PROMPT)
    whole, cut = rig(folder), rig(folder)
    whole.open(0, PROMPT)
    cut.open(0, end)
    assert torch.equal(cut.prefill(0, ids[:end]), whole.prefill(0, ids)[:end])


@pytest.mark.usefixtures("poisoned_memory")
def test_no_unwritten_memory_is_read(folder: Path) -> None:
    ids = tokens(PROMPT + 5)
    assert cold(folder, ids).isfinite().all()


def test_layers_that_share_a_selection_stay_together(tmp_path: Path) -> None:
    config = text_config(
        layer_types=["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"] * 2,
        indexer_types=["full", "full", "shared"] * 2,
    )
    folder = Oracle(config, seed=2).save(tmp_path)
    with pytest.raises(BudgetError, match=r"Layer 2 attends to the tokens that layer 1 chooses"):
        build_stages(folder, (2,))
    assert len(build_stages(folder, (3,))) == 2
