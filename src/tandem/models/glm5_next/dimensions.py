"""The dimensions of one GLM-5.3-Flash checkpoint. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glm5NextSpec:
    """The text model. Tuples have one entry a layer."""

    architecture: str
    num_layers: int
    vocab_size: int
    context_tokens: int
    hidden_size: int
    rms_norm_eps: float
    tied_head: bool

    layer_is_mla: tuple[bool, ...]
    """The others are KDA."""
    layer_is_dense: tuple[bool, ...]
    """The others are mixtures of experts."""
    layer_shares_selection: tuple[bool, ...]
    """MLA layers without an indexer: they attend to the tokens the last one with an indexer chose."""

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_head_dim: int
    v_head_dim: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    """Tokens chosen by pools; the incomplete pool at the end comes on top."""
    index_kpool: int

    kda_heads: int
    kda_head_dim: int
    conv_taps: int
    decay_lower_bound: float | None

    intermediate_size: int
    expert_intermediate_size: int
    num_experts: int
    experts_per_token: int
    shared_experts: int
    routed_scaling: float
    normalize_experts: bool
    swiglu_limit: float | None

    streams: int
    sinkhorn_iterations: int
    streams_eps: float
    mtp_layers: int

    @property
    def residual_width(self) -> int:
        return self.streams * self.hidden_size

    @property
    def default_cache_format(self) -> str:
        return "fp16"

    @property
    def kda_width(self) -> int:
        return self.kda_heads * self.kda_head_dim

    def selection_source(self, layer: int) -> int:
        """The layer whose indexer chooses the tokens that MLA layer ``layer`` attends to."""
        while self.layer_shares_selection[layer] or not self.layer_is_mla[layer]:
            layer -= 1
        return layer
