"""Rotary positions against plain torch, and the frequencies against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tandem.kernels.norm import reference as norm_reference
from tandem.kernels.rope import cpu, reference
from tandem.kernels.rope.frequencies import RopeSpec, inverse_frequencies, yarn_attention_factor


@pytest.mark.parametrize("rows", [1, 9, 63])
def test_rotation(rows: int) -> None:
    """Five of seven heads turn, and of each only the first 24 of 32 dimensions."""
    random = np.random.default_rng(rows)
    heads = random.standard_normal((rows, 7, 32)).astype(np.float32)
    positions = random.integers(0, 5000, rows).astype(np.int32)
    frequencies = np.array(inverse_frequencies(RopeSpec(10_000.0, 24)), np.float32)
    cosine, sine = np.full((2, rows, 12), np.nan, np.float32)
    cpu.angles(positions, frequencies, np.float32(1.5), cosine, sine)
    expected_angles = reference.angles(torch.from_numpy(positions), torch.from_numpy(frequencies), 1.5)
    assert np.allclose(cosine, expected_angles[0].numpy(), atol=1e-6)
    assert np.allclose(sine, expected_angles[1].numpy(), atol=1e-6)
    before = torch.from_numpy(heads.copy())
    cpu.rotate(heads, 5, cosine, sine)
    expected = reference.rotate(before[:, :5], torch.from_numpy(cosine), torch.from_numpy(sine))
    assert np.allclose(heads[:, :5], expected.numpy(), atol=1e-6)
    assert np.array_equal(heads[:, 5:], before[:, 5:].numpy())


def test_head_norms() -> None:
    random = np.random.default_rng(0)
    heads = random.standard_normal((11, 8, 32)).astype(np.float32)
    query, key = random.standard_normal((2, 32)).astype(np.float32)
    before = torch.from_numpy(heads.copy())
    cpu.normalize_heads(heads, 4, query, key, np.float32(1e-6))
    expected_query = norm_reference.rmsnorm(before[:, :4], torch.from_numpy(query), 1e-6)
    expected_key = norm_reference.rmsnorm(before[:, 4:6], torch.from_numpy(key), 1e-6)
    assert np.allclose(heads[:, :4], expected_query.numpy(), atol=1e-5)
    assert np.allclose(heads[:, 4:6], expected_key.numpy(), atol=1e-5)
    assert np.array_equal(heads[:, 6:], before[:, 6:].numpy())


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PUBLISHED = {
    "linear": ({"factor": 4.0}, RopeSpec(1e6, 64, "linear", 4.0)),
    "llama3": (
        {**LLAMA3, "original_max_position_embeddings": 8192},
        RopeSpec(1e6, 64, "llama3", 8.0, 8192, low_frequency_factor=1.0, high_frequency_factor=4.0),
    ),
    "yarn": (
        {"factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0, "beta_slow": 2.0},
        RopeSpec(1e6, 64, "yarn", 4.0, 4096, beta_fast=24.0, beta_slow=2.0),
    ),
    "yarn_not_truncated": (
        {"factor": 16.0, "original_max_position_embeddings": 2048, "truncate": False},
        RopeSpec(1e6, 64, "yarn", 16.0, 2048, truncate=False),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_frequencies_against_transformers(name: str) -> None:
    parameters, spec = PUBLISHED[name]
    config = LlamaConfig(
        head_dim=64,
        max_position_embeddings=65536,
        rope_parameters={"rope_type": spec.kind, "rope_theta": spec.theta, **parameters},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[spec.kind](config, torch.device("cpu"))
    found = np.array(inverse_frequencies(spec))
    assert np.abs(found / expected.numpy() - 1).max() < 1e-5
    if spec.kind == "yarn":
        assert yarn_attention_factor(spec.factor) == pytest.approx(factor)
