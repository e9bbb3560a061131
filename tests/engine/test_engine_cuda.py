"""The same steps where stages lie on CUDA cards: pinned buffers, device layouts, mixed cards."""

import pytest
import torch
from engine_rig import Rig, expected, prompt

from tandem.core.plan import Card

pytestmark = pytest.mark.gpu
FIRST = Card("cuda", 0, 1 << 24)
SECOND = Card("cuda", 1 if torch.cuda.device_count() > 1 else 0, 1 << 24)
HOST = Card("cpu", 0, 1 << 24)


@pytest.fixture(autouse=True)
def _needs_a_card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA card")


@pytest.mark.parametrize(
    "cards",
    [(FIRST,), (FIRST, SECOND), (FIRST, HOST), (HOST, FIRST), (FIRST, HOST, SECOND)],
    ids=lambda cards: "-".join(card.kind for card in cards),
)
def test_stages_on_cuda_cards_give_the_known_tokens(cards):
    with Rig(len(cards), cards=cards) as rig:
        sequences = [rig.driver.open(prompt(length, length)) for length in (3, 17, 40)]
        for sequence in sequences:
            rig.driver.generate(sequence, 5, beside=[s for s in sequences if s is not sequence])
        for sequence, length in zip(sequences, (3, 17, 40), strict=True):
            assert sequence.output == expected(prompt(length, length), len(sequence.output))
        for model in rig.models:
            assert len(model.addresses) == 1
