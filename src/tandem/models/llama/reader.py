"""A checkpoint's tensors as layers: names, fusions, and the row order of rotated heads."""

from __future__ import annotations

import numpy as np

from tandem.core.errors import ModelUnsupportedError
from tandem.kernels.rope.frequencies import inverse_frequencies
from tandem.layers.attention import GroupedAttention, HeadNorms
from tandem.layers.linear import GatedLinear, Linear
from tandem.layers.norm import RMSNorm
from tandem.loader.base import BlockTensor, TensorSource
from tandem.models.llama.dimensions import LlamaSpec
from tandem.models.llama.tensors import head_is_tied, layer_tensor, model_tensor
from tandem.quant.base import TiledWeight
from tandem.quant.tiles import StoredTensor, tile, tile_gated


class LayerReader:
    """Reads one tensor at a time; what it returns owns its memory."""

    def __init__(self, spec: LlamaSpec, weights: TensorSource) -> None:
        self.spec = spec
        self._weights = weights

    @property
    def head_is_tied(self) -> bool:
        return head_is_tied(self.spec, self._weights.names())

    def norm(self, layer: int, role: str) -> RMSNorm:
        return RMSNorm(self._vector(layer_tensor(self.spec, layer, role)), self.spec.rms_norm_eps)

    def final_norm(self) -> RMSNorm:
        return RMSNorm(self._vector(model_tensor(self.spec, "norm")), self.spec.rms_norm_eps)

    def table(self, role: str) -> TiledWeight:
        """``embedding`` or ``head``."""
        name = model_tensor(self.spec, role)
        return tile(self._read(name))

    def attention(self, layer: int) -> GroupedAttention:
        spec = self.spec
        names = [layer_tensor(spec, layer, role) for role in ("q", "k", "v")]
        orders = [self._head_rows(spec.heads), self._head_rows(spec.kv_heads)]
        orders.append(np.arange(spec.kv_heads * spec.head_dim))
        qkv_bias = out_bias = None
        if spec.qkv_bias:
            biases = [
                self._vector(layer_tensor(spec, layer, role)) for role in ("q_bias", "k_bias", "v_bias")
            ]
            qkv_bias = np.concatenate([bias[order] for bias, order in zip(biases, orders, strict=True)])
        if spec.output_bias:
            out_bias = self._vector(layer_tensor(spec, layer, "o_bias"))
        norms = HeadNorms(self.norm(layer, "q_norm"), self.norm(layer, "k_norm")) if spec.qk_norm else None
        qkv = tile(self._read(*names), orders)
        out = tile(self._read(layer_tensor(spec, layer, "o")))
        return GroupedAttention(
            Linear(qkv, qkv_bias),
            Linear(out, out_bias),
            heads=spec.heads,
            head_dim=spec.head_dim,
            norms=norms,
            window=spec.layer_windows[layer],
        )

    def mlp(self, layer: int) -> tuple[GatedLinear, Linear]:
        """Gate with up, and down."""
        gate, up, down = (layer_tensor(self.spec, layer, role) for role in ("gate", "up", "down"))
        return GatedLinear(tile_gated(self._read(gate, up))), Linear(tile(self._read(down)))

    def inverse_frequencies(self) -> np.ndarray:
        """float32 [rotary / 2]; GGUF files may carry divisors (how they express llama3 scaling)."""
        frequencies = np.array(inverse_frequencies(self.spec.rope), np.float32)
        if self.spec.gguf and (name := model_tensor(self.spec, "rope_factors")) in self._weights.names():
            frequencies /= self._vector(name)
        return frequencies

    def _read(self, *names: str) -> dict[str, StoredTensor]:
        return {name: self._weights.read(name) for name in names}

    def _head_rows(self, heads: int) -> np.ndarray:
        """Which stored row each row of a rotated projection is: pairs apart by half a head."""
        spec = self.spec
        rows = np.arange(heads * spec.head_dim)
        if not spec.interleaved_rope:
            return rows
        rotary = spec.rope.rotary_dim
        per_head = rows.reshape(heads, spec.head_dim).copy()
        pairs = per_head[:, :rotary].reshape(heads, rotary // 2, 2)
        per_head[:, :rotary] = pairs.transpose(0, 2, 1).reshape(heads, rotary)
        return per_head.reshape(-1)

    def _vector(self, name: str) -> np.ndarray:
        stored = self._weights.read(name)
        if isinstance(stored, BlockTensor):
            raise ModelUnsupportedError(f"Tensor {name} must not be quantized", found=stored.dtype)
        return np.ascontiguousarray(stored.float().numpy())
