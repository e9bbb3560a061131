"""GLM's decode and verify step on a card: the CPU's reference path, and the same bits whatever else runs."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from tests.gpu.cards import CUBINS
from tests.gpu.glm_rig import OnCard, reference

from tandem.models.glm5_next.rehearsal_spec import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]


@pytest.fixture(scope="module")
def cubins():
    return CUBINS


def tokens_of(seed: int, count: int) -> list[int]:
    return torch.randint(0, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize(("cache", "limit"), [("fp16", 2e-3), ("q8", 1e-2)])
def test_equals_the_reference_path(cubins, cache, limit):
    """Every expert is chosen, so that no tie of the router flips; from token 64 on, ties of pools can."""
    spec = dataclasses.replace(SMALL, num_experts=4)
    card, cpu = OnCard(cubins, eight_bit=cache == "q8", spec=spec), reference(cache, spec)
    tokens, errors = tokens_of(1, 132), []
    for first, end in itertools.pairwise([0, 1, 3, 8, 24, 40, 56, 64, 72, 88, 104, 120, 128, 132]):
        step = [(2, first, tokens[first:end])]
        found, expected = card.step(step), cpu.step(step)
        errors.append((found - expected).norm(dim=1) / expected.norm(dim=1))
    error = torch.cat(errors)
    print(cache, [f"{float(part.median()):.1e}" for part in errors], float(error.max()))
    assert error[:64].max() < limit
    assert error[64:].median() < 5 * limit


def test_a_rows_bits_depend_on_its_own_sequence_alone(cubins):
    alone, beside = OnCard(cubins), OnCard(cubins)
    sequences = {slot: tokens_of(slot, 90) for slot in range(4)}
    done = dict.fromkeys(sequences, 0)
    kept: dict[tuple[int, int], torch.Tensor] = {}
    generator = torch.Generator().manual_seed(3)
    while any(done[slot] < 80 for slot in sequences):
        runs = []
        for slot, tokens in sequences.items():
            count = min(int(torch.randint(0, 5, (1,), generator=generator)), 90 - done[slot])
            if count:
                runs.append((slot, done[slot], tokens[done[slot] : done[slot] + count]))
        if not runs:
            continue
        logits = beside.step(runs)
        row = 0
        for slot, start, tokens in runs:
            for i in range(len(tokens)):
                kept[slot, start + i] = logits[row]
                row += 1
            done[slot] = start + len(tokens)
    for slot in (0, 3):
        for position in range(done[slot]):
            one = alone.step([(slot, position, [sequences[slot][position]])])
            assert torch.equal(one[0], kept[slot, position]), (slot, position)


def test_rejected_rows_leave_no_trace(cubins):
    plain, verified = OnCard(cubins), OnCard(cubins)
    tokens = tokens_of(9, 90)
    expected = [plain.step([(0, i, [tokens[i]])])[0] for i in range(80)]
    position, generator = 0, torch.Generator().manual_seed(4)
    while position < 72:
        accepted = int(torch.randint(1, 9, (1,), generator=generator))
        wrong = tokens_of(1000 + position, 8 - accepted)
        rows = [*tokens[position : position + accepted], *wrong]
        logits = verified.step([(0, position, rows)])
        for i in range(accepted):
            if position + i < 80:
                assert torch.equal(logits[i], expected[position + i]), position + i
        position += accepted


def test_a_captured_step_gives_the_same_bits(cubins):
    card, replayed = OnCard(cubins), OnCard(cubins)
    tokens = tokens_of(5, 80)
    for i in range(0, 72, 8):
        card.step([(0, i, tokens[i : i + 8])])
        replayed.step([(0, i, tokens[i : i + 8])])
    expected = card.step([(0, 72, tokens[72:80])])
    replayed.step([(0, 72, tokens[72:80])])
    program = replayed._programs[8]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program.run()
    program.logits.fill_(float("nan"))
    graph.replay()
    assert torch.equal(program.logits.cpu(), expected)
