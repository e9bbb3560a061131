"""Two checkpoints written by the EXL3 converter: against transformers on the dequantized weights, and
against the logits of the converter's own program.

Random weights with four index heads give many pools a score of exactly 0, so that the choice among them is
open. transformers' depends on the length of a call; ours goes to the earlier pool. Such positions are told
by their tie.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tandem.kernels.indexer import reference as indexer

from .golden import DATA, MODELS, DequantizedOracle, checkpoint_folder
from .rig import Rig, build_stages

REFERENCE = load_file(DATA / "exllamav3_logits.safetensors")
IDS = REFERENCE["ids"].flatten()


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, checkpoint_folder(request.param, tmp_path_factory.mktemp("exl3"))


def one_pass(folder: Path, cache: str = "fp32") -> torch.Tensor:
    rig = Rig(build_stages(folder, cache=cache))
    rig.open(0, len(IDS))
    return rig.prefill(0, IDS)


def rows_of_open_choice(
    kwargs: dict[str, Any], module: torch.nn.Module, chosen: torch.Tensor
) -> torch.Tensor:
    """Rows where the oracle chose other pools than we do, all of the same score: bool [T]."""
    x, low_rank = kwargs["hidden_states"][0], kwargs["q_resid"][0]
    T, P, D = len(x), module.index_kpool, module.head_dim
    keys = module.k_norm(module.wk(x))[: T // P * P].view(-1, P, D)
    gates = (x @ module.index_kpool_compress_gate.T)[: T // P * P].view(-1, P, D)
    pooled = indexer.pool_keys(keys, gates, module.index_kpool_compress_ape)
    scores = indexer.score_pools(module.wq_b(low_rank).view(T, -1, D), module.weights_proj(x), pooled)
    ours = indexer.select_pools(scores, (torch.arange(T) + 1) // P, module.index_topk // P)
    pools = chosen[0, :, : module.index_topk].long()
    theirs = torch.zeros(T, T // P + 1, dtype=torch.bool)
    theirs.scatter_(1, torch.where(pools >= 0, pools // P, T // P), True)
    differs = ours != theirs[:, : T // P]
    open_rows = differs.any(1)
    for row in open_rows.nonzero()[:, 0].tolist():
        tied = scores[row, differs[row]]
        assert torch.equal(tied, tied[:1].expand_as(tied)), f"row {row} differs without a tie"
    return open_rows


def test_against_transformers_on_the_dequantized_weights(model: tuple[str, Path]) -> None:
    oracle = DequantizedOracle(model[1])
    seen: list[torch.Tensor] = []
    module = oracle.model.layers[3].self_attn.indexer
    module.register_forward_hook(
        lambda m, _, kwargs, out: seen.append(rows_of_open_choice(kwargs, m, out)), with_kwargs=True
    )
    expected, found = oracle(IDS), one_pass(model[1])
    settled = ~seen[0]
    assert settled.float().mean() > 0.95
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert error[settled].max() < 2e-5


def test_against_the_converters_own_program(model: tuple[str, Path]) -> None:
    """It computes in fp16, and its single steps follow a prompt of 300 tokens."""
    name, folder = model
    rig = Rig(build_stages(folder))
    rig.open(0, len(IDS))
    found = torch.cat((rig.prefill(0, IDS[:300]), rig.steps(0, IDS, 300)))
    expected = torch.cat((REFERENCE[f"exl3_{name}.nc"], REFERENCE[f"exl3_{name}.decode300"])).float()
    found = torch.cat((one_pass(folder)[::4], found[300::2]))
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.median() < 4e-3
    assert (found.argmax(1) == expected.argmax(1)).float().mean() >= 0.97


def test_q8_cache_stays_close_to_fp16(model: tuple[str, Path]) -> None:
    half, eighth = (torch.log_softmax(one_pass(model[1], cache), -1) for cache in ("fp16", "q8"))
    divergence = (half.exp() * (half - eighth)).sum(-1)
    assert divergence.mean() < 1e-3
    assert (half.argmax(1) == eighth.argmax(1)).float().mean() > 0.97
