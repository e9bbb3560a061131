"""Logits of tiny random models against transformers in float32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from .rig import Rig, build_stages
from .tiny import Oracle, relative_error, text_config

BOUND = 2e-5
LENGTHS = (1, 63, 300, 1000)


@cache
def oracle(kpool: int) -> Oracle:
    return Oracle(text_config(index_kpool=kpool), seed=kpool)


@pytest.fixture(scope="module", params=[4, 16], ids=["kpool4", "kpool16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path]:
    made = oracle(request.param)
    return made, made.save(tmp_path_factory.mktemp("glm"))


def tokens(count: int) -> torch.Tensor:
    return torch.randint(160, (count,), generator=torch.Generator().manual_seed(count))


def worst_row(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("length", LENGTHS)
def test_one_pass(model: tuple[Oracle, Path], length: int) -> None:
    reference, folder = model
    ids = tokens(length)
    rig = Rig(build_stages(folder))
    rig.open(3, length)
    found = rig.prefill(3, ids)
    expected = reference(ids)
    assert found.shape == expected.shape
    assert relative_error(found, expected) < BOUND
    assert worst_row(found, expected) < 5 * BOUND


def test_prefill_then_a_hundred_steps(model: tuple[Oracle, Path]) -> None:
    reference, folder = model
    ids = tokens(300)
    rig = Rig(build_stages(folder))
    rig.open(0, 300)
    found = torch.cat((rig.prefill(0, ids[:200]), rig.steps(0, ids, 200)))
    assert relative_error(found, reference.steps(ids, 200)) < BOUND


def test_layers_that_share_a_selection(tmp_path: Path) -> None:
    """transformers shares between neighbours only."""
    sparse = "deepseek_sparse_attention"
    config = text_config(
        layer_types=["linear_attention", sparse, sparse, "linear_attention", sparse],
        indexer_types=["full", "full", "shared", "full", "full"],
    )
    reference = Oracle(config, seed=5)
    ids = tokens(200)
    rig = Rig(build_stages(reference.save(tmp_path)))
    rig.open(0, 200)
    found = torch.cat((rig.prefill(0, ids[:150]), rig.steps(0, ids, 150, rows=7)))
    assert relative_error(found, reference(ids)) < BOUND


def test_decay_without_a_lower_bound(tmp_path: Path) -> None:
    linear = {**text_config()["linear_attn_config"], "gate_lower_bound": None, "safe_gate": False}
    reference = Oracle(text_config(linear_attn_config=linear), seed=6)
    assert reference.model.config.linear_lower_bound is None
    ids = tokens(100)
    rig = Rig(build_stages(reference.save(tmp_path)))
    rig.open(0, 100)
    found = torch.cat((rig.prefill(0, ids[:90]), rig.steps(0, ids, 90)))
    assert relative_error(found, reference(ids)) < BOUND


def test_weights_in_bfloat16(tmp_path: Path) -> None:
    """As the released checkpoint stores them: all but the residual streams' and the decays' and the
    router's constants.
    """
    in_full = ("hc.fn", "hc.base", "hc.scale", "A_log", "dt_bias", "correction_bias")
    reference = Oracle(text_config(), seed=8)
    for name, weight in reference.named_parameters():
        if not name.endswith(in_full):
            weight.copy_(weight.bfloat16())
    folder = reference.save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    endings = tuple(name.replace("hc.", "_") for name in in_full)
    kept = {name: value if name.endswith(endings) else value.bfloat16() for name, value in tensors.items()}
    assert sum(value.dtype == torch.float32 for value in kept.values()) == 6 * 5 + 2 * 4 + 4
    save_file(kept, folder / "model.safetensors")
    ids = tokens(200)
    rig = Rig(build_stages(folder))
    rig.open(0, 200)
    found = torch.cat((rig.prefill(0, ids[:150]), rig.steps(0, ids, 150, rows=5)))
    assert relative_error(found, reference(ids)) < BOUND


def test_a_tied_head(tmp_path: Path) -> None:
    """The checkpoint has no lm_head: the embedding serves for both."""
    reference = Oracle(text_config(tie_word_embeddings=True), seed=7)
    reference.lm_head.weight = reference.model.embed_tokens.weight
    folder = reference.save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    ids = tokens(40)
    rig = Rig(build_stages(folder))
    rig.open(0, 40)
    assert relative_error(rig.prefill(0, ids), reference(ids)) < BOUND
