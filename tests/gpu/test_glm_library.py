"""GLM chunks of many rows, for which what all rows meet is decoded once, against their rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.gpu.cards import CUBINS
from tests.gpu.glm_rig import OnCard
from tests.gpu.test_glm_rows import tokens_of

from tandem.kernels.exl3 import chunk
from tandem.models.glm5_next import cuda_prefill
from tandem.models.glm5_next.rehearsal_spec import SMALL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]
ROWS = 64


def test_the_shared_expert_apart_from_the_routed_ones(monkeypatch):
    spec = dataclasses.replace(SMALL, num_experts=4)  # all are chosen: no tie of the router flips
    rows, chunks = OnCard(CUBINS, spec=spec), OnCard(CUBINS, spec=spec)
    tokens = tokens_of(5, 100)
    expected = torch.cat([rows.step([(0, i, tokens[i : i + 10])]) for i in range(0, 100, 10)])
    for module in (chunk, cuda_prefill):
        monkeypatch.setattr(module, "LIBRARY_ROWS", ROWS)
    found = chunks.prefill(0, tokens, ROWS)
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.isfinite().all()
    assert error[:ROWS].max() < 1e-2
    assert error.median() < 1e-2
    assert torch.equal(OnCard(CUBINS, spec=spec).prefill(0, tokens[:70], ROWS), found[:70])
