"""A model with one thing wrong is refused by every command in one line, before weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cli_outcome import Tandem
from safetensors.torch import load_file, save_file
from tiny_folder import change_config, write_tiny_llama

import tandem.kernels.jit  # noqa: F401 - finds the cache of compiled kernels before fixtures move the folders

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


def cut_weights(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])


def point_to_lfs(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS)


def bend_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(3, 5)
    save_file(tensors, folder / WEIGHTS)


def promise_more_shards(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_weights, "is cut short; found:"),
        (point_to_lfs, "a Git LFS pointer"),
        (drop_tensor, "model.layers.1.mlp.up_proj.weight"),
        (bend_tensor, "model.layers.0.self_attn.q_proj.weight"),
        (promise_more_shards, "lacks 1 of 2 weight files: model-00002-of-00002.safetensors"),
        (lambda folder: (folder / WEIGHTS).unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json"),
        (lambda folder: change_config(folder, num_hidden_layers=None), "num_hidden_layers"),
        (lambda folder: change_config(folder, hidden_size="wide"), "hidden_size"),
        (lambda folder: change_config(folder, architectures=["FooForCausalLM"]), "FooForCausalLM"),
        (lambda folder: change_config(folder, architectures=None), "architectures"),
    ],
)
def test_one_line_that_names_it(
    tandem: Tandem, folder: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(folder)
    outcome = tandem("generate", "--raw", "hi", "--model", str(folder))
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cards", "cpu:2x10KiB"], "10.00 KiB"),
        (["--context", "64k"], "context"),
        (["--kv", "q77"], "q77"),
        (["--cards", "cuda:1"], "cuda:0"),
    ],
)
def test_what_cannot_be_had_is_refused_with_numbers(
    tandem: Tandem, folder: Path, flags: list[str], said: str
) -> None:
    if flags == ["--cards", "cuda:1"] and torch.cuda.is_available():
        pytest.skip("this machine has the card")
    outcome = tandem("generate", "--raw", "hi", "--model", str(folder), *flags)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_model_without_a_chat_template_says_so_and_still_completes(tandem: Tandem, folder: Path) -> None:
    outcome = tandem("generate", "hi", "--model", str(folder), "-n", "2")
    assert outcome.code == 2
    assert "template" in outcome.err
    outcome = tandem("generate", "--raw", "hi", "--model", str(folder), "-n", "2", "-t", "0", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["usage"]["completion_tokens"] <= 2
