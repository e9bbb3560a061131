"""Refusals before any memory is taken: each names what was asked, what was found, and a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem.api.load import check_free_memory, prepare_model
from tandem.core.cards import parse_cards
from tandem.core.errors import BudgetError, ModelDamagedError
from tandem.core.options import LoadOptions
from tandem.core.plan import GIB, MIB, Card, MemoryTerm, Plan, StagePlan
from tandem.core.progress import Silent
from tandem.core.settings import read_environment

LAYERS = 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": LAYERS,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "eos_token_id": 0,
}  # fmt: skip
SHAPES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
    "input_layernorm": (64,), "post_attention_layernorm": (64,),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama in two shards with an index."""
    first = {"model.embed_tokens.weight": torch.zeros(256, 64), "model.norm.weight": torch.ones(64)}
    second = {
        f"model.layers.{i}.{name}.weight": torch.zeros(*shape)
        for i in range(LAYERS)
        for name, shape in SHAPES.items()
    }
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for name, tensors in zip(names, (first, second), strict=True):
        save_file(tensors, tmp_path / name)
    weight_map = dict.fromkeys(first, names[0]) | dict.fromkeys(second, names[1])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def prepare(folder: Path, cards: str, free: int):
    options = LoadOptions(model=str(folder), cards=parse_cards(cards))
    return prepare_model(options, read_environment(), Silent(), free_bytes=lambda kind, index: free)


def test_a_card_with_less_free_than_its_budget_and_plan_is_refused(folder: Path) -> None:
    needed = prepare(folder, "cuda:0=2GiB", 64 * GIB).plan.card_bytes("cuda:0")
    assert prepare(folder, "cuda:0=2GiB", needed).plan.card_bytes("cuda:0") == needed
    with pytest.raises(BudgetError, match="planned on cuda:0") as refused:
        prepare(folder, "cuda:0=2GiB", needed - 1)
    assert "free" in (refused.value.found or "")
    assert "--context" in (refused.value.remedy or "")


def test_cpu_cards_share_one_memory(folder: Path) -> None:
    plan = prepare(folder, "cpu:2x1GiB", 64 * GIB).plan
    together = plan.card_bytes("cpu:0") + plan.card_bytes("cpu:1")
    with pytest.raises(BudgetError, match="CPU cards"):
        prepare(folder, "cpu:2x1GiB", together - 1)


def test_each_cuda_card_is_measured_by_itself() -> None:
    cards = tuple(Card("cuda", index, GIB) for index in (0, 3))
    stages = tuple(StagePlan(card, i, i + 1, i == 0, i == 1) for i, card in enumerate(cards))
    terms = tuple(MemoryTerm(card.name, "weights", 100 * MIB) for card in cards)
    plan = Plan(stages, 64, 128, 1, 1, 128, terms)
    with pytest.raises(BudgetError, match="cuda:3"):
        check_free_memory(plan, lambda kind, index: GIB if index == 0 else MIB)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelDamagedError, match="lacks 1 of 2 weight files: model-00002") as refused:
        prepare(folder, "cpu:1", 64 * GIB)
    assert refused.value.remedy
