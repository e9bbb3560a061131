"""What a CUDA card refuses of a GLM before anything is read, and what it takes beside weights and caches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tandem.core.errors import ModelUnsupportedError, SettingsError
from tandem.loader.base import TensorHeader
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.glm5_next.cuda_limits import cache_is_eight_bit, check_dimensions, check_formats
from tandem.models.glm5_next.cuda_sizes import (
    MAX_ROWS,
    workspace_bytes,
    workspace_bytes_per_token,
)
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import RELEASED, RELEASED_BITS, SMALL, SMALL_BITS
from tandem.models.glm5_next.spec import footprint

from .checkpoints import MODELS, checkpoint_folder
from .rig import read_spec


def headers_of(source: RandomCheckpoint | SafetensorsSource) -> dict[str, TensorHeader]:
    return {name: source.header(name) for name in source.names()}


@pytest.fixture(scope="module")
def headers() -> dict[str, TensorHeader]:
    return headers_of(RandomCheckpoint(SMALL, SMALL_BITS, torch.device("cpu")))


@pytest.mark.parametrize("name", MODELS)
def test_the_committed_checkpoints_and_the_released_dimensions_are_computed(
    tmp_path: Path, name: str
) -> None:
    folder = checkpoint_folder(name, tmp_path)
    spec = read_spec(folder)
    check_dimensions(spec)
    check_formats(spec, headers_of(SafetensorsSource.open(folder)), range(spec.num_layers), has_head=True)
    check_dimensions(RELEASED)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"streams": 2}, "residual streams"),
        ({"kda_head_dim": 64}, "recurrent head size"),
        ({"index_head_dim": 64}, "index head size"),
        ({"conv_taps": 3}, "convolution taps"),
        ({"hidden_size": 320}, "hidden size"),
        ({"hidden_size": 16_384}, "hidden size"),
        ({"kv_lora_rank": 384}, "latent size"),
        ({"experts_per_token": 15}, "number of experts"),
        ({"vocab_size": 600_000}, "vocabulary"),
        ({"layer_shares_selection": (False, False, False, False, True)}, "selection shared between layers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_dimensions_are_named_with_what_was_found(change: dict[str, object], said: str) -> None:
    with pytest.raises(ModelUnsupportedError, match=f"This model's {said} cannot be computed") as refused:
        check_dimensions(dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
    assert refused.value.found
    assert "--cards cpu:1" in (refused.value.remedy or "")


def test_a_quantized_router_is_named(headers: dict[str, TensorHeader]) -> None:
    base = "model.language_model.layers.1.mlp"
    edited = dict(headers)
    del edited[f"{base}.gate.weight"]
    for part in ("trellis", "suh", "svh", "mul1"):
        edited[f"{base}.gate.{part}"] = headers[f"{base}.experts.0.gate_proj.{part}"]
    with pytest.raises(ModelUnsupportedError, match=r"layers\.1\.mlp\.gate cannot be multiplied.*EXL3"):
        check_formats(SMALL, edited, range(SMALL.num_layers), has_head=True)
    check_formats(SMALL, edited, range(2, SMALL.num_layers), has_head=True)


def test_only_cpu_cards_keep_fp32() -> None:
    assert not cache_is_eight_bit("fp16")
    assert cache_is_eight_bit("q8")
    with pytest.raises(SettingsError, match="found: fp32; try: --kv fp16 or --kv q8"):
        cache_is_eight_bit("fp32")


def test_a_footprint_for_cuda_counts_steps_and_graphs(headers: dict[str, TensorHeader]) -> None:
    kinds = {
        kind: footprint(SMALL, headers, chunk_tokens=256, cache_dtype="fp16", card_kind=kind)
        for kind in ("cpu", "cuda")
    }
    assert kinds["cpu"].graph_bytes_per_layer == 0 < kinds["cuda"].graph_bytes_per_layer
    assert kinds["cpu"].workspace_bytes_per_token == 0 < kinds["cuda"].workspace_bytes_per_token
    assert kinds["cpu"].layer_weight_bytes == kinds["cuda"].layer_weight_bytes
    with pytest.raises(SettingsError, match="cannot keep its cache"):
        footprint(SMALL, headers, chunk_tokens=256, cache_dtype="fp32", card_kind="cuda")


def test_the_workspace_grows_with_the_chunk() -> None:
    chunks = (512, 2048, 4096, 8192)
    in_place, by_copies = (
        [workspace_bytes(RELEASED, chunk, in_place=in_place) for chunk in chunks]
        for in_place in (True, False)
    )
    assert in_place == sorted(in_place)
    # H200, 2026-11-30, rows that see few tokens: 2.05 GiB in place for 4,096.
    assert 2.05 < in_place[2] / 2**30 < 2.4
    # The copies are of 512 rows, however long the chunk is.
    copies = {more - less for less, more in zip(in_place, by_copies, strict=True)}
    assert copies == {512 * 24 * 64 * 512}
    # A chunk's scores stay below a bound, so that only a step's rows grow with the pool.
    assert workspace_bytes_per_token(RELEASED) == MAX_ROWS


@pytest.mark.parametrize(
    ("capability", "cache", "less"),
    [((9, 0), "fp16", True), ((9, 0), "q8", True), ((8, 9), "q8", False), (None, "fp16", False)],
)
def test_attention_in_place_is_hoppers(capability: tuple[int, int] | None, cache: str, less: bool) -> None:
    headers = headers_of(RandomCheckpoint(RELEASED, RELEASED_BITS, torch.device("cpu")))

    def planned(of: tuple[int, int] | None) -> int:
        return footprint(
            RELEASED, headers, chunk_tokens=4096, cache_dtype=cache, card_kind="cuda", capability=of
        ).workspace_bytes

    assert (planned(capability) < planned(None)) is less
