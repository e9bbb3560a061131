"""The MTP layer against the same layer put together from transformers' modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.glm5_next import modeling_glm5_next as oracle

from tandem.cache.layout import PrefillLayout, RowsLayout
from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.loader.safetensors import SafetensorsSource
from tandem.models.glm5_next.model import CacheSizes
from tandem.models.glm5_next.mtp import MtpLayer, build_mtp
from tandem.models.glm5_next.spec import footprint

from .golden import checkpoint_folder, checkpoint_value, dequantized
from .rig import Rig, build_stages, read_spec
from .tiny import Oracle, oracle_config, randomize, relative_error, text_config, to_checkpoint

SIZES = CacheSizes(total_pages=16, page_tokens=16, max_slots=2, latent_format="fp32")
LAYERS, D = 3, 64


class OracleMtp(torch.nn.Module):
    """``mla_layer`` is one of the trunk's layers of the same kind."""

    def __init__(self, config: dict[str, Any], mla_layer: int) -> None:
        super().__init__()
        config = oracle_config(config)
        width = config.hidden_size
        self.enorm, self.hnorm, self.input_layernorm, self.post_attention_layernorm = (
            oracle.Glm5NextTextRMSNorm(width, 1e-5) for _ in range(4)
        )
        self.shared_head = torch.nn.ModuleDict({"norm": oracle.Glm5NextTextRMSNorm(width, 1e-5)})
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.self_attn = oracle.Glm5NextTextAttention(config, mla_layer)
        self.mlp = oracle.Glm5NextTextMoE(config)

    def forward(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(state)), dim=-1))[None]
        valid = torch.ones(1, x.shape[1], dtype=torch.bool)
        x = x + self.self_attn(self.input_layernorm(x), valid)[0]
        x = x + self.mlp(self.post_attention_layernorm(x))
        return self.shared_head["norm"](x)[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[OracleMtp, Path]:
    config = text_config(num_hidden_layers=LAYERS, num_nextn_predict_layers=1)
    folder = Oracle(config, seed=1).save(tmp_path_factory.mktemp("mtp"))
    mtp = OracleMtp(text_config(num_hidden_layers=LAYERS), mla_layer=2)
    randomize(mtp, 2)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, **to_checkpoint(mtp, f"layers.{LAYERS}.")}, folder / "model.safetensors")
    return mtp, folder


def build(folder: Path) -> MtpLayer:
    return build_mtp(read_spec(folder), SafetensorsSource.open(folder), SIZES)


@pytest.mark.parametrize("prompt", [1, 63, 150])
def test_chunks_then_steps(model: tuple[OracleMtp, Path], prompt: int) -> None:
    reference, folder = model
    layer, total = build(folder), prompt + 20
    generator = torch.Generator().manual_seed(prompt)
    embedded, state = torch.randn(2, total, D, generator=generator)
    table = torch.randperm(16, generator=generator).int()
    parts = []
    for start in range(0, prompt, 64):
        length = min(64, prompt - start)
        padded = [
            torch.nn.functional.pad(x[start : start + length], (0, 0, 0, 64 - length))
            for x in (embedded, state)
        ]
        layout = PrefillLayout(1, start, length, 64, table, torch.zeros(64, dtype=torch.int64))
        parts.append(layer.forward_prefill(*padded, layout)[:length])
    for position in range(prompt, total, 2):
        rows = slice(position, position + 2)
        layout = RowsLayout(
            token_ids=torch.zeros(2, dtype=torch.int64),
            positions=torch.arange(position, position + 2).int(),
            run_of_row=torch.zeros(2).int(),
            run_starts=torch.tensor([0, 2]).int(),
            slots=torch.tensor([1]).int(),
            page_tables=table[None],
        )
        parts.append(layer.forward_rows(embedded[rows], state[rows], layout))
    assert relative_error(torch.cat(parts), reference(embedded, state)) < 1e-5


def test_its_tensors_neither_disturb_nor_count_in_the_trunk(model: tuple[OracleMtp, Path]) -> None:
    source = SafetensorsSource.open(model[1])
    headers = {name: source.header(name) for name in source.names()}
    trunk = footprint(read_spec(model[1]), headers, chunk_tokens=64, cache_dtype="fp32")
    (stage,) = build_stages(model[1])
    assert trunk.num_layers == LAYERS
    assert sum(trunk.layer_weight_bytes) + trunk.embedding_bytes + trunk.head_bytes == stage.weight_bytes
    assert build(model[1]).weight_bytes > 0


def test_the_converters_layer_guesses_from_trunk_states(tmp_path: Path) -> None:
    """Quantized to four bits by the converter, behind a three-bit trunk: as transformers' modules compute on
    the dequantized weights.
    """
    folder = checkpoint_folder("3.0_mul1", tmp_path)
    spec, ids = read_spec(folder), torch.arange(32) * 7
    layer = build_mtp(spec, SafetensorsSource.open(folder), SIZES)
    (stage,) = build_stages(folder, chunk_tokens=32)
    rig = Rig([stage], chunk_tokens=32)
    table = torch.tensor([7, 3], dtype=torch.int32)
    layout = PrefillLayout(0, 0, 31, 32, table, ids)
    trunk_layout = PrefillLayout(0, 0, 32, 32, torch.tensor(rig.open(1, 32), dtype=torch.int32), ids)
    states = stage.final_norm(stage.forward_prefill(stage.embed(ids), trunk_layout))
    following = stage.embed(ids.roll(-1))[:, : spec.hidden_size]
    found = layer.forward_prefill(following, states, layout)[:31]
    guesses = stage.head_logits(found)
    assert guesses.shape == (31, spec.vocab_size)
    config = json.loads((folder / "config.json").read_text())["text_config"]
    reference = OracleMtp(config, mla_layer=3).eval()
    tensors = dequantized(SafetensorsSource.open(folder))
    state = {key: checkpoint_value(f"layers.4.{key}", tensors) for key in reference.state_dict()}
    reference.load_state_dict(state)
    expected = reference(following[:31], states[:31])
    assert relative_error(found, expected) < 1e-5
    assert relative_error(guesses, expected @ tensors["lm_head.weight"].T) < 1e-5


def test_half_a_layer_is_refused_by_name(model: tuple[OracleMtp, Path]) -> None:
    source = SafetensorsSource.open(model[1])
    for gone in ("enorm.weight", "eh_proj.weight", "mlp.experts.3.up_proj.weight"):
        headers = {
            name: source.header(name) for name in source.names() if not name.endswith(f".{LAYERS}.{gone}")
        }
        with pytest.raises(ModelDamagedError, match=rf"lacks tensor .*layers\.{LAYERS}\.{gone}"):
            footprint(read_spec(model[1]), headers, chunk_tokens=64, cache_dtype="fp16")


def test_a_checkpoint_without_the_layer_is_refused_by_name(tmp_path: Path) -> None:
    folder = checkpoint_folder("4.0_mcg", tmp_path)
    assert json.loads((folder / "config.json").read_text())["text_config"]["num_nextn_predict_layers"] == 1
    with pytest.raises(ModelUnsupportedError, match=r"no layer for multi-token prediction.*layers\.4"):
        build(folder)
