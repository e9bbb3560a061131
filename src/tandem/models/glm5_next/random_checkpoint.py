"""A checkpoint of random weights in a model's exact shapes and bit rates, made where it is wanted.

For rehearsals (a machine's speed and memory before a download) and for tests. Names are those of the EXL3
converter. A tensor's values depend on its name and the seed alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator

import torch

from tandem.core.errors import ModelDamagedError
from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.planner.geometry import BitWidths

_DTYPES = {"I16": torch.int16, "F16": torch.float16, "F32": torch.float32, "I32": torch.int32}
_Entry = tuple[str, str, tuple[int, ...]]


class RandomCheckpoint:
    """Implements ``TensorSource``; ``read`` makes the tensor on ``device``."""

    def __init__(self, spec: Glm5NextSpec, bits: BitWidths, device: torch.device, seed: int = 0) -> None:
        self._device = device
        self._seed = seed
        self._headers = {
            name: TensorHeader(name, dtype, shape, math.prod(shape) * _DTYPES[dtype].itemsize)
            for name, dtype, shape in _entries(spec, bits)
        }

    def names(self) -> Collection[str]:
        return self._headers

    def header(self, name: str) -> TensorHeader:
        if name not in self._headers:
            raise ModelDamagedError(f"The checkpoint lacks tensor {name}")
        return self._headers[name]

    def read(self, name: str) -> torch.Tensor:
        header = self.header(name)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()) + self._seed)
        shape, dtype = header.shape, _DTYPES[header.dtype]
        if dtype == torch.int16:
            return torch.randint(-32768, 32768, shape, generator=generator, dtype=dtype, device=self._device)
        noise = torch.randn(shape, generator=generator, device=self._device)
        return _scaled(name, noise).to(dtype)


def _scaled(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Scales that keep activations of order one and every branch of the model in use."""
    last = name.rpartition(".")[2]
    if last in ("suh", "svh"):
        signs = torch.where(noise < 0, -1.0, 1.0)
        return signs * (noise.numel() ** -0.5 if last == "suh" else 1.0)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if last == "e_score_correction_bias":
        return 0.02 * noise
    if noise.dim() < 2 or name.endswith("_ape"):
        return 0.5 * noise + (1.0 if name.endswith("scale") else 0.0)
    return noise if "embed_tokens" in name else noise * noise.shape[-1] ** -0.5


def _entries(spec: Glm5NextSpec, bits: BitWidths) -> Iterator[_Entry]:
    hidden, prefix = spec.hidden_size, "model.language_model"
    yield f"{prefix}.embed_tokens.weight", "F16", (spec.vocab_size, hidden)
    yield f"{prefix}.norm.weight", "F16", (hidden,)
    yield from _exl3("lm_head", hidden, spec.vocab_size, bits.head)
    for layer in range(spec.num_layers):
        base = f"{prefix}.layers.{layer}"
        yield f"{base}.input_layernorm.weight", "F16", (hidden,)
        yield f"{base}.post_attention_layernorm.weight", "F16", (hidden,)
        coefficients = (2 + spec.streams) * spec.streams
        for site in ("attn", "ffn"):
            yield f"{base}.hc_{site}_fn", "F32", (coefficients, spec.residual_width)
            yield f"{base}.hc_{site}_base", "F32", (coefficients,)
            yield f"{base}.hc_{site}_scale", "F32", (3,)
        attention = _mla if spec.layer_is_mla[layer] else _kda
        yield from attention(spec, f"{base}.self_attn", bits.attention)
        if spec.layer_is_dense[layer]:
            yield from _mlp(hidden, f"{base}.mlp", spec.intermediate_size, bits.dense)
        else:
            yield from _moe(spec, f"{base}.mlp", bits)


def _exl3(name: str, inputs: int, outputs: int, bits: float) -> Iterator[_Entry]:
    yield f"{name}.trellis", "I16", (inputs // 16, outputs // 16, int(16 * bits))
    yield f"{name}.suh", "F16", (inputs,)
    yield f"{name}.svh", "F16", (outputs,)
    yield f"{name}.mul1", "I32", ()


def _kda(spec: Glm5NextSpec, base: str, bits: float) -> Iterator[_Entry]:
    hidden, width, rank = spec.hidden_size, spec.kda_width, spec.kda_head_dim
    yield from _exl3(f"{base}.qkv_proj", hidden, 3 * width, bits)
    yield from _exl3(f"{base}.o_proj", width, hidden, bits)
    yield f"{base}.conv1d.weight", "F16", (3 * width, 1, spec.conv_taps)
    for name, inputs, outputs in (
        ("f_a_proj", hidden, rank),
        ("f_b_proj", rank, width),
        ("g_a_proj", hidden, rank),
        ("g_b_proj", rank, width),
        ("b_proj", hidden, spec.kda_heads),
    ):
        yield f"{base}.{name}.weight", "F16", (outputs, inputs)
    yield f"{base}.A_log", "F32", (spec.kda_heads,)
    yield f"{base}.dt_bias", "F32", (width,)
    yield f"{base}.o_norm.weight", "F16", (rank,)


def _mla(spec: Glm5NextSpec, base: str, bits: float) -> Iterator[_Entry]:
    hidden, latent, heads, key = spec.hidden_size, spec.kv_lora_rank, spec.heads, spec.index_head_dim
    yield from _exl3(f"{base}.q_a_proj", hidden, spec.q_lora_rank, bits)
    yield from _exl3(f"{base}.q_b_proj", spec.q_lora_rank, heads * spec.qk_head_dim, bits)
    yield from _exl3(f"{base}.kv_a_proj_with_mqa", hidden, latent, bits)
    yield from _exl3(f"{base}.o_proj", heads * spec.v_head_dim, hidden, bits)
    yield f"{base}.kv_b_proj.weight", "F16", (heads * (spec.qk_head_dim + spec.v_head_dim), latent)
    yield f"{base}.q_a_layernorm.weight", "F16", (spec.q_lora_rank,)
    yield f"{base}.kv_a_layernorm.weight", "F16", (latent,)
    index = f"{base}.indexer"
    yield from _exl3(f"{index}.wq_b", spec.q_lora_rank, spec.index_heads * key, bits)
    yield f"{index}.wk.weight", "F16", (key, hidden)
    yield f"{index}.k_norm.weight", "F16", (key,)
    yield f"{index}.k_norm.bias", "F16", (key,)
    yield f"{index}.weights_proj.weight", "F16", (spec.index_heads, hidden)
    yield f"{index}.index_kpool_compress_ape", "F32", (spec.index_kpool, key)
    yield f"{index}.index_kpool_compress_gate", "F16", (key, hidden)


def _moe(spec: Glm5NextSpec, base: str, bits: BitWidths) -> Iterator[_Entry]:
    yield f"{base}.gate.weight", "F16", (spec.num_experts, spec.hidden_size)
    yield f"{base}.gate.e_score_correction_bias", "F32", (spec.num_experts,)
    size = spec.expert_intermediate_size
    for expert in range(spec.num_experts):
        yield from _mlp(spec.hidden_size, f"{base}.experts.{expert}", size, bits.experts)
    if spec.shared_experts:
        yield from _mlp(spec.hidden_size, f"{base}.shared_experts", size * spec.shared_experts, bits.shared)


def _mlp(hidden: int, base: str, size: int, bits: float) -> Iterator[_Entry]:
    yield from _exl3(f"{base}.gate_proj", hidden, size, bits)
    yield from _exl3(f"{base}.up_proj", hidden, size, bits)
    yield from _exl3(f"{base}.down_proj", size, hidden, bits)
