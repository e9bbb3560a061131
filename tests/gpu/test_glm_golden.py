"""The committed EXL3 checkpoints on a card: the converter's own program, the CPU's path, and sameness."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.glm.checkpoints import DATA, MODELS, checkpoint_folder
from tests.gpu.cards import NEEDS_CARD
from tests.gpu.engine_rig import Serving, logits_of

from tandem.loader.device import DeviceSource
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.glm5_next.config import from_config

pytestmark = NEEDS_CARD
REFERENCE = load_file(DATA / "exllamav3_logits.safetensors")
IDS = REFERENCE["ids"].flatten().tolist()


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory):
    folder = checkpoint_folder(request.param, tmp_path_factory.mktemp("exl3"))
    return request.param, from_config(json.loads((folder / "config.json").read_text())), folder


def error(found, expected):
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


def test_against_the_converters_own_program_and_the_cpus_path(checkpoint):
    """A prompt of 128 tokens, then steps. Ties that flip stay in the recurrent state."""
    name, spec, folder = checkpoint
    source, ids = SafetensorsSource.open(folder), IDS[:152]
    found, expected = (logits_of(kind, spec, source, "fp16", ids, prompt=128) for kind in ("cuda", "cpu"))
    ours, theirs = error(found, expected), error(found[:128:4], REFERENCE[f"exl3_{name}.nc"][:32].float())
    agree = (found.argmax(1) == expected.argmax(1)).float().mean()
    print(
        f"{name}: to the CPU {float(ours[:60].median()):.1e}, then {float(ours.median()):.1e}, of equal"
        f" argmax {float(agree):.3f}; to the converter's program {float(theirs.median()):.1e}"
    )
    assert found.isfinite().all()
    assert ours[:60].median() < 2e-2
    assert ours.median() < 5e-2
    assert theirs.median() < 5e-2
    assert agree > 0.9


def test_answers_are_the_same_alone_and_beside_others_on_one_stage_and_on_two(checkpoint):
    _, spec, folder = checkpoint
    source = SafetensorsSource.open(folder)
    prompts = [IDS[start : start + length] for start, length in ((0, 7), (9, 64), (100, 130), (50, 200))]
    with Serving(spec=spec, source=source, reuse="off") as serving:
        alone = [serving.send(prompt).tokens for prompt in prompts]
    for cuts in ((), (2,)):
        with Serving(cuts, spec=spec, source=source) as serving:
            answers = [serving.send(prompt) for prompt in prompts]
            assert [answer.tokens for answer in answers] == alone


def test_tensors_read_straight_onto_the_card_are_those_of_the_file(checkpoint):
    _, spec, folder = checkpoint
    source, seen = SafetensorsSource.open(folder), []
    card = torch.device("cuda", 0)
    with DeviceSource(source, card, end_layer=spec.num_layers, arrived=seen.append) as reading:
        for name in sorted(source.names()):
            found = reading.read(name)
            assert found.device == card
            assert torch.equal(found.cpu(), source.read(name)), name
    assert sum(seen) == sum(source.header(name).stored_bytes for name in source.names())
