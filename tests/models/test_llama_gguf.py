"""GGUF checkpoints: the same model from safetensors and from GGUF gives the same bits; demo text."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from llama_rig import LlamaRig, random_tokens
from tiny import TinyLlama, write_tiny_llama

PARTS = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers.": "blk.",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    for part, replacement in PARTS.items():
        name = name.replace(part, replacement)
    return name


def pairwise_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows as the ``llama`` converter stores them: the two halves of a head alternate."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path, tiny: TinyLlama, architecture: str, rope_factors: np.ndarray | None = None
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(tiny.num_layers)
    writer.add_context_length(tiny.context_tokens)
    writer.add_embedding_length(tiny.hidden_size)
    writer.add_feed_forward_length(tiny.intermediate_size)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(tiny.vocab_size)
    for name, tensor in tiny.tensors().items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = pairwise_rows(tensor, tiny.heads if "q_proj" in name else tiny.kv_heads)
        writer.add_tensor(gguf_name(name), tensor.float().numpy())
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2"), ("Qwen3ForCausalLM", "qwen3")],
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_same_bits_as_safetensors(tmp_path: Path, architecture: str, name: str, tied: bool) -> None:
    tiny = TinyLlama(architecture, tied=tied)
    folder = write_tiny_llama(tmp_path / "hf", tiny)
    path = write_gguf(tmp_path / "model.gguf", tiny, name)
    tokens = random_tokens(80, tiny.vocab_size)
    from_folder, from_gguf = LlamaRig(folder), LlamaRig(path)
    assert torch.equal(from_gguf.prefill(tokens), from_folder.prefill(tokens))
    assert from_gguf.stages[0].weight_bytes == from_folder.stages[0].weight_bytes


def test_rope_divisors(tmp_path: Path) -> None:
    """GGUF expresses llama3 scaling as one divisor a frequency."""
    plain = TinyLlama(extra={"rope_scaling": {"type": "linear", "factor": 2.0}})
    folder = write_tiny_llama(tmp_path / "hf", plain)
    divisors = np.full(plain.head_dim // 2, 2.0, np.float32)
    path = write_gguf(tmp_path / "model.gguf", TinyLlama(), "llama", divisors)
    tokens = random_tokens(80, plain.vocab_size)
    assert torch.equal(LlamaRig(path).prefill(tokens), LlamaRig(folder).prefill(tokens))


@pytest.mark.demo
@pytest.mark.slow
def test_demo_text_equals_transformers(demo_gguf: Path) -> None:
    """Greedy continuation of the demo model, as transformers computes it from the same file in fp32."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(
        demo_gguf.parent, gguf_file=demo_gguf.name, dtype=torch.float32
    )
    rig = LlamaRig(demo_gguf, max_tokens=160)
    # "The capital of France is" and a stretch of arbitrary ids.
    for prompt in ([504, 3575, 282, 4649, 314], random_tokens(70, 40_000, seed=3)):
        with torch.inference_mode():
            generated = reference.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        expected = generated[0, len(prompt) :].tolist()
        found = [int(rig.prefill(prompt)[-1].argmax())]
        while len(found) < len(expected):
            found.append(int(rig.step([(0, len(prompt) + len(found) - 1, [found[-1]])]).argmax()))
        assert found == expected
