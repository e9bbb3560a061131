"""Two checkpoints written by the EXL3 converter: against transformers on the dequantized weights, and
against the logits of the converter's own program.

Random weights with four index heads give many pools a score of exactly 0, so that the choice among them is
open. transformers' depends on how many tokens follow in the call, so that no rule a decoder could keep
gives the same; ours goes to the earlier pool.
"""

from __future__ import annotations

from pathlib import Path

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


class TheirTies:
    """Stands in for ``select_pools`` of the one MLA layer: equal scores are settled as the oracle settled
    them, and nothing but equal scores. Counts positions from ``first``, the first that has a choice.
    """

    def __init__(self, chosen: torch.Tensor, first: int) -> None:
        self._chosen = chosen
        self._ours = indexer.select_pools
        self._next = first
        self.open_rows: list[int] = []

    def __call__(self, scores: torch.Tensor, visible_pools: torch.Tensor, count: int) -> torch.Tensor:
        selected = self._ours(scores, visible_pools, count)
        rows = max(0, len(self._chosen) - self._next)
        for row, row_scores in zip(selected[:rows], scores[:rows], strict=True):
            theirs = self._chosen[self._next, : len(row)]
            differs = row ^ torch.nn.functional.pad(theirs, (0, len(row) - len(theirs)))
            if differs.any():
                tied = row_scores[differs]
                assert torch.equal(tied, tied[:1].expand_as(tied)), f"row {self._next} differs without a tie"
                self.open_rows.append(self._next)
                row ^= differs
            self._next += 1
        return selected


def chosen_pools(positions: torch.Tensor, pool_tokens: int, count: int) -> torch.Tensor:
    """The oracle's choice without the tail, int32 [1, T, count · pool_tokens + tail], as bool [T, N]."""
    pools = positions[0, :, : count * pool_tokens].long() // pool_tokens
    T = len(pools)
    chosen = torch.zeros(T, T // pool_tokens + 1, dtype=torch.bool)
    chosen.scatter_(1, torch.where(pools >= 0, pools, T // pool_tokens), True)
    return chosen[:, :-1]


def test_against_transformers_on_the_dequantized_weights(
    model: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all positions once equal scores are settled alike, and on all the others anyway."""
    oracle = DequantizedOracle(model[1])
    seen: list[torch.Tensor] = []
    module = oracle.model.layers[3].self_attn.indexer
    pools = module.index_topk // module.index_kpool
    module.register_forward_hook(
        lambda m, _, out: seen.append(chosen_pools(out, m.index_kpool, pools)),
    )
    expected, found = oracle(IDS), one_pass(model[1])
    ties = TheirTies(seen[0], first=module.index_topk)
    monkeypatch.setattr(indexer, "select_pools", ties)
    error = row_errors(one_pass(model[1]), expected)
    assert error.max() < 2e-5
    settled = torch.ones(len(IDS), dtype=torch.bool)
    settled[ties.open_rows] = False
    assert 0.95 < settled.float().mean() < 1
    assert row_errors(found, expected)[settled].max() < 2e-5


def row_errors(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


def test_against_the_converters_own_program(model: tuple[str, Path]) -> None:
    """It computes in fp16, and its single steps follow a prompt of 300 tokens."""
    name, folder = model
    rig = Rig(build_stages(folder))
    rig.open(0, len(IDS))
    found = torch.cat((rig.prefill(0, IDS[:300]), rig.steps(0, IDS, 300)))
    expected = torch.cat((REFERENCE[f"exl3_{name}.nc"], REFERENCE[f"exl3_{name}.decode300"])).float()
    found = torch.cat((one_pass(folder)[::4], found[300::2]))
    error = row_errors(found, expected)
    assert error.median() < 4e-3
    assert (found.argmax(1) == expected.argmax(1)).float().mean() >= 0.97


def test_q8_cache_stays_close_to_fp16(model: tuple[str, Path]) -> None:
    half, eighth = (torch.log_softmax(one_pass(model[1], cache), -1) for cache in ("fp16", "q8"))
    divergence = (half.exp() * (half - eighth)).sum(-1)
    assert divergence.mean() < 1e-3
    assert (half.argmax(1) == eighth.argmax(1)).float().mean() > 0.97
