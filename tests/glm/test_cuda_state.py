"""Recurrent slots of a card's stage: kept, restored bit for bit, and whether a chunk must fold rows first."""

import pytest
import torch

from tandem.core.errors import EngineFault
from tandem.kernels.kda.cuda import DeviceSlots
from tandem.models.glm5_next.cuda_state import SlotStates

SLOTS, HEADS = 3, 2
CPU = torch.device("cpu")


@pytest.fixture
def layers():
    made = [DeviceSlots.zeros(SLOTS + 1, HEADS, CPU) for _ in range(2)]
    for layer in made:
        scramble(layer)
    return made


def scramble(layer: DeviceSlots) -> None:
    for part in (layer.state, layer.history, layer.pending):
        part.normal_()
    layer.committed.random_(0, 1000)


def contents(layers: list[DeviceSlots], slot: int) -> list[torch.Tensor]:
    return [
        part[slot].clone()
        for layer in layers
        for part in (layer.state, layer.history, layer.committed, layer.pending)
    ]


def test_a_checkpoint_comes_back_bit_for_bit_in_any_slot(layers):
    states = SlotStates(layers, SLOTS)
    kept = contents(layers, 1)
    states.save(1, 5, after_rows=True)
    for layer in layers:
        scramble(layer)
    others = contents(layers, 0)
    states.restore(2, 5)
    assert all(map(torch.equal, contents(layers, 2), kept))
    assert all(map(torch.equal, contents(layers, 0), others))


def test_after_prefill_nothing_is_pending_and_nothing_of_it_is_kept(layers):
    states = SlotStates(layers, SLOTS)
    states.save(0, 0, after_rows=False)
    before = [layer.pending.clone() for layer in layers]
    states.restore(1, 0)
    assert all(torch.equal(layer.pending, old) for layer, old in zip(layers, before, strict=True))
    states.save(0, 0, after_rows=True)
    states.restore(1, 0)
    assert all(torch.equal(layer.pending[1], layer.pending[0]) for layer in layers)


def test_a_number_is_written_anew(layers):
    states = SlotStates(layers, SLOTS)
    states.save(0, 3, after_rows=True)
    later = contents(layers, 1)
    states.save(1, 3, after_rows=False)
    states.restore(0, 3)
    restored = contents(layers, 0)
    for part in range(len(later)):
        if part % 4 < 3:
            assert torch.equal(restored[part], later[part])


def test_reset_empties_one_slot(layers):
    others = contents(layers, 0)
    SlotStates(layers, SLOTS).reset(1)
    assert all(not part.any() for layer in layers for part in (layer.state[1], layer.history[1]))
    assert all(not layer.committed[1].any() for layer in layers)
    assert all(map(torch.equal, contents(layers, 0), others))


def test_rows_since_the_last_chunk_are_folded_and_only_then(layers):
    states = SlotStates(layers, SLOTS)
    states.reset(0)
    assert not states.needs_fold(0, 0)
    states.prefilled(0, 64)
    assert not states.needs_fold(0, 64)
    states.save(0, 1, after_rows=False)
    assert states.needs_fold(0, 128)
    states.save(0, 2, after_rows=True)  # rows have carried the sequence to 128
    states.restore(1, 1)
    states.restore(2, 2)
    assert not states.needs_fold(1, 64)
    assert states.needs_fold(2, 128)
    states.prefilled(2, 192)
    assert not states.needs_fold(2, 192)
    states.reset(2)
    assert not states.needs_fold(2, 0)


def test_stages_without_recurrent_layers_fold_nothing():
    states = SlotStates([], SLOTS)
    states.save(0, 1, after_rows=True)
    states.restore(1, 1)
    assert not states.needs_fold(1, 64)


def test_a_checkpoint_that_was_never_saved_is_a_fault(layers):
    with pytest.raises(EngineFault, match=r"Slot 1 .* checkpoint 8; found: it was never saved"):
        SlotStates(layers, SLOTS).restore(1, 8)
