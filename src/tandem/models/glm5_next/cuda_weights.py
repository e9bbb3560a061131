"""A checkpoint's tensors as the CUDA kernels want them: EXL3 matrices stacked, small ones fused."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.core.errors import ModelUnsupportedError
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack
from tandem.kernels.exl3.plain import plain_matrix
from tandem.kernels.hyper_connection.cuda import SiteWeights
from tandem.kernels.kda.cuda import StepWeights
from tandem.kernels.mla.cuda import MlaStepWeights
from tandem.loader.base import BlockTensor, TensorSource
from tandem.models.glm5_next.dimensions import Glm5NextSpec
from tandem.models.glm5_next.tensors import (
    Names,
    conv_names,
    embedding_part,
    head_is_tied,
    qkv_names,
)
from tandem.quant.exl3.format import is_exl3, read_format
from tandem.quant.exl3.linear import unpack_signs


@dataclass(frozen=True, slots=True)
class KdaTensors:
    qkv: Exl3Stack
    step: StepWeights
    out: Exl3Stack


@dataclass(frozen=True, slots=True)
class MlaTensors:
    down: Exl3Stack
    """Groups q_a and kv_a."""
    up: Exl3Stack
    """Groups q_b and the indexer's wq_b."""
    step: MlaStepWeights
    out: Exl3Stack


@dataclass(frozen=True, slots=True)
class MlpTensors:
    gate_up: Exl3Stack
    """Groups gate and up; one matrix each, or all experts with the shared one last."""
    down: Exl3Stack
    router: torch.Tensor | None
    """fp16 [E, hidden]; None: a plain MLP."""
    correction_bias: torch.Tensor | None
    """fp32 [E]."""
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that all rows meet, as stacks of one matrix a group over the same tiles."""

    gate_up: Exl3Stack
    down: Exl3Stack


class DeviceReader:
    """Reads tensors onto one card and counts their bytes."""

    def __init__(self, source: TensorSource, device: torch.device) -> None:
        self._source = source
        self._device = device
        self.headers = {name: source.header(name) for name in source.names()}
        self.names = Names.of(self.headers)
        self.weight_bytes = 0

    def site(self, spec: Glm5NextSpec, base: str, site: str, norm: str) -> SiteWeights:
        """``site``: ``attn`` or ``ffn``."""
        return SiteWeights(
            mixer=self.floats(f"{base}.hc_{site}_fn"),
            base=self.floats(f"{base}.hc_{site}_base"),
            scale=self.floats(f"{base}.hc_{site}_scale"),
            norm=self.floats(f"{base}.{norm}.weight"),
        )

    def kda(self, spec: Glm5NextSpec, base: str) -> KdaTensors:
        hidden, width = spec.hidden_size, spec.kda_width
        qkv = qkv_names(self.names, base)
        conv = torch.cat([self._tensor(name).float() for name in conv_names(self.names, base)])
        step = StepWeights(
            small=self.halves(f"{base}.f_a_proj", f"{base}.g_a_proj", f"{base}.b_proj"),
            forget_up=self.halves(f"{base}.f_b_proj"),
            gate_up=self.halves(f"{base}.g_b_proj"),
            conv=self._keep(conv.view(3 * width, -1)),
            dt_bias=self.floats(f"{base}.dt_bias"),
            a_log=self.floats(f"{base}.A_log"),
            norm=self.floats(f"{base}.o_norm.weight"),
        )
        return KdaTensors(
            qkv=self.stack([[self.matrix(name, hidden, 3 * width // len(qkv))] for name in qkv]),
            step=step,
            out=self.stack([[self.matrix(f"{base}.o_proj", width, hidden)]]),
        )

    def mla(self, spec: Glm5NextSpec, base: str) -> MlaTensors:
        hidden, heads, latent = spec.hidden_size, spec.heads, spec.kv_lora_rank
        index = f"{base}.indexer"
        kv_b = self._tensor(f"{base}.kv_b_proj.weight").half()
        halves = kv_b.view(heads, spec.qk_head_dim + spec.v_head_dim, latent)
        step = MlaStepWeights(
            query_norm=self.floats(f"{base}.q_a_layernorm.weight"),
            latent_norm=self.floats(f"{base}.kv_a_layernorm.weight"),
            small=self._keep(
                torch.cat(
                    [
                        self._tensor(f"{index}.wk.weight").half(),
                        self._tensor(f"{index}.index_kpool_compress_gate").half(),
                        self._tensor(f"{index}.weights_proj.weight").half(),
                    ]
                )
            ),
            key_norm=self.floats(f"{index}.k_norm.weight"),
            key_bias=self.floats(f"{index}.k_norm.bias"),
            pool_bias=self.floats(f"{index}.index_kpool_compress_ape"),
            key_half=self._keep(halves[:, : spec.qk_head_dim]),
            value_half=self._keep(halves[:, spec.qk_head_dim :].transpose(1, 2)),
        )
        rank, index_width = spec.q_lora_rank, spec.index_heads * spec.index_head_dim
        return MlaTensors(
            down=self.stack(
                [
                    [self.matrix(f"{base}.q_a_proj", hidden, rank)],
                    [self.matrix(f"{base}.kv_a_proj_with_mqa", hidden, latent)],
                ]
            ),
            up=self.stack(
                [
                    [self.matrix(f"{base}.q_b_proj", rank, heads * spec.qk_head_dim)],
                    [self.matrix(f"{index}.wq_b", rank, index_width)],
                ]
            ),
            step=step,
            out=self.stack([[self.matrix(f"{base}.o_proj", heads * spec.v_head_dim, hidden)]]),
        )

    def mlp(self, spec: Glm5NextSpec, base: str, *, dense: bool) -> MlpTensors:
        hidden = spec.hidden_size
        if dense:
            bases, size = [base], spec.intermediate_size
        else:
            size = spec.expert_intermediate_size
            bases = [f"{base}.experts.{n}" for n in range(spec.num_experts)]
            if spec.shared_experts:
                bases.append(f"{base}.shared_experts")
        gate_up = self.stack(
            [[self.matrix(f"{at}.{part}_proj", hidden, size) for at in bases] for part in ("gate", "up")]
        )
        down = self.stack([[self.matrix(f"{at}.down_proj", size, hidden) for at in bases]])
        shared = None
        if not dense and spec.shared_experts:
            shared = SharedExpert(gate_up.single(spec.num_experts), down.single(spec.num_experts))
        return MlpTensors(
            gate_up=gate_up,
            down=down,
            shared=shared,
            router=None if dense else self.halves(f"{base}.gate"),
            correction_bias=None if dense else self.floats(f"{base}.gate.e_score_correction_bias"),
        )

    def matrix(self, name: str, in_features: int, out_features: int) -> Exl3Matrix:
        """As stored, with its padding: padded inputs count for nothing, padded outputs are 0.

        Raises ModelUnsupportedError for a bias on an output whose scale is 0.
        """
        if not is_exl3(name, self.headers):
            return plain_matrix(self._tensor(f"{name}.weight"))
        form = read_format(name, self.headers, in_features, out_features)
        if form.packed_signs:
            suh, svh = (unpack_signs(self._tensor(f"{name}.{part}")) for part in ("su", "sv"))
        else:
            suh, svh = (self._tensor(f"{name}.{part}").clone() for part in ("suh", "svh"))
        suh[in_features:], svh[out_features:] = 0, 0
        bias = None
        if form.has_bias:
            bias = self._tensor(f"{name}.bias").half()
            bias[out_features:] = 0
            if ((svh == 0) & (bias != 0)).any():
                raise ModelUnsupportedError(f"{name} adds a bias to outputs whose scale is 0")
        return Exl3Matrix(
            self._tensor(f"{name}.trellis").contiguous(), suh, svh, codebook=form.codebook, bias=bias
        )

    def vocabulary(self, spec: Glm5NextSpec) -> Exl3Matrix:
        """Of the head; a tied one is a copy of the embedding."""
        if head_is_tied(spec, self.names):
            return plain_matrix(self._tensor(embedding_part(spec, self.names).name))
        return self.matrix("lm_head", spec.hidden_size, spec.vocab_size)

    def stack(self, groups: list[list[Exl3Matrix]]) -> Exl3Stack:
        stack = Exl3Stack.of(groups)
        self.weight_bytes += stack.nbytes
        return stack

    def halves(self, *names: str) -> torch.Tensor:
        """Matrices [out, in] one above the other, fp16."""
        return self._keep(torch.cat([self._tensor(f"{name}.weight").half() for name in names]))

    def floats(self, name: str) -> torch.Tensor:
        return self._keep(self._tensor(name).float())

    def table(self, name: str, *, on_host: bool) -> torch.Tensor:
        """fp16, on the card or in pinned host memory, which kernels read by the same address."""
        table = self._tensor(name).half()
        if not on_host:
            return self._keep(table)
        return torch.empty(table.shape, dtype=table.dtype, pin_memory=True).copy_(table)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        kept = tensor.contiguous()
        self.weight_bytes += kept.nbytes
        return kept

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self._source.read(name)
        assert not isinstance(tensor, BlockTensor), "checked against the headers before"
        return tensor.to(self._device)
