"""The committed EXL3 checkpoints (MUL1 of three rates, MCG of two) on a card against the reference path."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.glm.checkpoints import DATA, MODELS, checkpoint_folder
from tests.gpu.cards import CUBINS, NEEDS_CARD
from tests.gpu.glm_rig import OnCard, reference

from tandem.loader.safetensors import SafetensorsSource
from tandem.models.glm5_next.spec import from_config

pytestmark = NEEDS_CARD
TOKENS = 120


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    folder = checkpoint_folder(request.param, tmp_path_factory.mktemp("exl3"))
    return from_config(json.loads((folder / "config.json").read_text())), SafetensorsSource.open(folder)


@pytest.fixture(scope="module")
def ids():
    return load_file(DATA / "exllamav3_logits.safetensors")["ids"].flatten()[:TOKENS].tolist()


def errors(found, expected):
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


def test_rows_equal_the_reference_path(model, ids):
    """A router's tie may flip in fp16 and reach the rows after it; the median tells."""
    spec, source = model
    card, cpu = OnCard(CUBINS, spec=spec, source=source), reference("fp16", spec, source)
    found, first = [], 0
    for count in (1, 2, 5, 16, 16, 16, 8, 16, 16, 16, 8):
        step = [(2, first, ids[first : first + count])]
        found.append(errors(card.step(step), cpu.step(step)))
        first += count
    error = torch.cat(found)
    print(f"rows: median {float(error.median()):.1e}, largest {float(error.max()):.1e}")
    assert error.isfinite().all()
    assert error.median() < 2e-3


def test_a_prompt_equals_its_rows(model, ids):
    spec, source = model
    rows, chunks = (OnCard(CUBINS, spec=spec, source=source) for _ in range(2))
    expected = torch.cat([rows.step([(0, i, ids[i : i + 8])]) for i in range(0, TOKENS, 8)])
    error = errors(chunks.prefill(0, ids, 64), expected)
    print(f"prompt: median {float(error.median()):.1e}, largest {float(error.max()):.1e}")
    assert error.isfinite().all()
    assert error.median() < 2e-2


def test_a_rows_bits_do_not_depend_on_the_step(model, ids):
    spec, source = model
    single, many = (OnCard(CUBINS, spec=spec, source=source) for _ in range(2))
    expected = torch.cat([single.step([(1, i, ids[i : i + 1])]) for i in range(48)])
    found = torch.cat([many.step([(1, i, ids[i : i + 12])]) for i in range(0, 48, 12)])
    assert torch.equal(found, expected)
