"""Llama-like models against transformers, in fp32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from llama_rig import LlamaRig, random_tokens
from tiny import TinyLlama, write_tiny_llama
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-4

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
FAMILIES = {
    "llama": TinyLlama(),
    "llama_untied": TinyLlama(tied=False, seed=1),
    "llama_bias": TinyLlama(extra={"attention_bias": True}, seed=2),
    "llama_odd_vocabulary": TinyLlama(vocab_size=307, tied=False, hidden_size=64, heads=2, kv_heads=2),
    "llama_head_80": TinyLlama(head_dim=80, heads=3, kv_heads=1, num_layers=2),
    "llama_linear": TinyLlama(extra={"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama_dynamic": TinyLlama(extra={"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "llama3": TinyLlama(extra={"rope_parameters": LLAMA3_ROPE}),
    "yarn": TinyLlama(extra={"rope_parameters": YARN_ROPE}),
    "mistral": TinyLlama("MistralForCausalLM", tied=False, extra={"sliding_window": None}),
    "mistral_window": TinyLlama("MistralForCausalLM", tied=False, extra={"sliding_window": 37}),
    "qwen2": TinyLlama("Qwen2ForCausalLM", tied=False, seed=3),
    "qwen2_window": TinyLlama(
        "Qwen2ForCausalLM",
        extra={"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1},
    ),
    "qwen3": TinyLlama("Qwen3ForCausalLM", head_dim=32, seed=4),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def tiny(request: pytest.FixtureRequest) -> TinyLlama:
    return request.param


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def test_prefill_and_single_steps(tmp_path: Path, tiny: TinyLlama) -> None:
    folder = write_tiny_llama(tmp_path, tiny)
    tokens = random_tokens(200, tiny.vocab_size)
    expected = reference_logits(folder, tokens)
    rig = LlamaRig(folder)
    prompt = 150
    assert relative_error(rig.prefill(tokens[:prompt]), expected[:prompt]) < TOLERANCE
    steps = torch.cat([rig.step([(0, p, [tokens[p]])]) for p in range(prompt, len(tokens))])
    assert relative_error(steps, expected[prompt:]) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_weights_are_computed_in_fp32(tmp_path: Path, dtype: torch.dtype) -> None:
    tiny = TinyLlama(dtype=dtype, tied=False)
    folder = write_tiny_llama(tmp_path, tiny)
    tokens = random_tokens(70, tiny.vocab_size)
    rig = LlamaRig(folder)
    assert relative_error(rig.prefill(tokens), reference_logits(folder, tokens)) < TOLERANCE


def test_long_prompt(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    tokens = random_tokens(1000, TinyLlama().vocab_size)
    rig = LlamaRig(folder, max_tokens=1024)
    assert relative_error(rig.prefill(tokens), reference_logits(folder, tokens)) < TOLERANCE


def test_half_precision_cache_stays_close(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    tokens = random_tokens(150, TinyLlama().vocab_size)
    rig = LlamaRig(folder, cache_dtype="fp16")
    assert relative_error(rig.prefill(tokens), reference_logits(folder, tokens)) < 5e-3
