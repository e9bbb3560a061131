"""Commands on a tiny GLM folder: one thing wrong with it is one line that names it, with exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.cli.main import run

from .chat_template import GLM_TEMPLATE
from .golden import checkpoint_folder
from .http_rig import write_checkpoint

LAYERS = "model.language_model.layers"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("plain"), layers=5)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoint_folder("3.0_mul1", tmp_path_factory.mktemp("exl3"))
    (folder / "chat_template.jinja").write_text(GLM_TEMPLATE)
    return folder


def change(path: str, edit: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / path)
        edit(tensors)
        save_file(tensors, folder / path)

    return damage


def set_tensor(path: str, name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    return change(path, lambda tensors: tensors.update({name: make(tensors[name]).contiguous()}))


def set_config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["text_config"].update(changes)
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def cut(path: str) -> Damage:
    return lambda folder: (folder / path).write_bytes((folder / path).read_bytes()[:-1])


def copy_a_tensor_into_the_other_shard(folder: Path) -> None:
    first, second = (load_file(folder / shard) for shard in SHARDS)
    name = f"{LAYERS}.0.self_attn.o_proj.suh"
    assert name in first
    save_file({**second, name: first[name]}, folder / SHARDS[1])


WHOLE = "model.safetensors"
PLAIN: dict[str, tuple[Damage, str]] = {
    "a missing tensor": (
        change(WHOLE, lambda tensors: tensors.pop(f"{LAYERS}.2.self_attn.kv_b_proj.weight")),
        "lacks tensor model.language_model.layers.2.self_attn.kv_b_proj.weight",
    ),
    "another shape": (
        set_tensor(WHOLE, f"{LAYERS}.0.self_attn.q_proj.weight", lambda t: t[:, :32]),
        "layers.0.self_attn.q_proj.weight must have shape [64, 64]",
    ),
    "another model's config": (set_config(hidden_size=128), "must have shape [1024, 128]"),
    "a config of fewer layers": (
        set_config(num_hidden_layers=3, layer_types=["linear_attention"] * 2 + ["deepseek_sparse_attention"],
                   mlp_layer_types=["dense", "sparse", "sparse"], indexer_types=["full"] * 3),
        "layers.3.",
    ),
    "a cut file": (cut(WHOLE), "model.safetensors is cut short"),
    "bf16 constants of the residual streams": (
        set_tensor(WHOLE, f"{LAYERS}.3.hc_ffn_scale", torch.Tensor.bfloat16),
        "layers.3.hc_ffn_scale must be F32",
    ),
    "fp16 constants of the residual streams": (
        set_tensor(WHOLE, f"{LAYERS}.0.hc_attn_base", torch.Tensor.half),
        "layers.0.hc_attn_base must be F32",
    ),
    "a weight that is no number": (
        set_tensor(WHOLE, f"{LAYERS}.0.self_attn.o_proj.weight", lambda t: t.where(t != t[3], torch.nan)),
        "tensor model.language_model.layers.0.self_attn.o_proj.weight; found: 64 of 4,096 are NaN or inf",
    ),
    "an unknown layer type": (
        set_config(layer_types=["linear_attention", "mamba2"] + ["linear_attention"] * 3),
        "Layer 1 has an unknown type in config.json's layer_types; found: 'mamba2'",
    ),
    "a missing field": (set_config(index_kpool=None), "index_kpool must be a whole number"),
    "a broken template": (
        lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"),
        "chat_template.jinja, line 1",
    ),
}  # fmt: skip
QUANTIZED: dict[str, tuple[Damage, str]] = {
    "a cut shard": (cut(SHARDS[0]), f"{SHARDS[0]} is cut short"),
    "a missing shard": (lambda folder: (folder / SHARDS[1]).unlink(), f"files: {SHARDS[1]}"),
    "a tensor in two shards": (copy_a_tensor_into_the_other_shard, "o_proj.suh occurs twice"),
    "codes of another width": (
        set_tensor(SHARDS[0], f"{LAYERS}.0.self_attn.o_proj.trellis", lambda t: t[..., :21]),
        "o_proj.trellis must have 1 to 8 bits a weight",
    ),
    "half of the layer for drafts": (
        change(SHARDS[0], lambda tensors: tensors.pop(f"{LAYERS}.4.enorm.weight")),
        "model.language_model.layers.4.enorm.weight",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
}


@pytest.mark.parametrize("name", [*PLAIN, *QUANTIZED])
def test_one_line_that_names_it(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    kind, (damage, said) = ("plain", PLAIN[name]) if name in PLAIN else ("quantized", QUANTIZED[name])
    folder = shutil.copytree(request.getfixturevalue(kind), tmp_path / "model")
    damage(folder)
    code = run(["generate", "--raw", "hi", "-n", "1", "--threads", "1", "--model", str(folder)])
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--chunk", "30"],
            "whole pools of 4 tokens; found: chunks of 30; try: --chunk with a multiple of 4",
        ),
        (["--kv", "q3"], "found: q3; try: one of fp32, fp16, q8"),
        (["--cards", "cpu:9"], "a model of 5 layers"),
        (["--context", "100k"], "a model made for 4,096"),
    ],
)
def test_settings_that_this_model_cannot_take(
    plain: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert run(["generate", "--raw", "hi", "-n", "1", "--model", str(plain), *flags]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_reasoning_without_an_answer_is_told(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "Hello", "-t", "0", "--threads", "1", "--model", str(plain)]
    assert run([*arguments, "-n", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "\n"
    assert "Only reasoning was written (length)" in captured.err
    assert run([*arguments, "-n", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reasoning"]
    assert told["content"] == ""
