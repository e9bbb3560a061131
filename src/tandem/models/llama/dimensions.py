"""What there is to know of a Llama-like model before loading it."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.kernels.rope.frequencies import RopeSpec


@dataclass(frozen=True, slots=True)
class LlamaSpec:
    """One checkpoint's dimensions; ``architecture`` as the checkpoint names it."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    rms_norm_eps: float
    rope: RopeSpec
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    """RMSNorm over every query and key head before the rotation (Qwen3)."""
    layer_windows: tuple[int, ...]
    """Per layer: how many positions a row sees, itself included; 0 = all before it."""
    gguf: bool
    """Tensors carry GGUF names; the head is tied if the file holds no output tensor."""
    tied_head: bool = False
    """For config.json checkpoints: the head reads the embedding table, whatever else the file holds."""

    @property
    def residual_width(self) -> int:
        return self.hidden_size

    @property
    def default_cache_format(self) -> str:
        return "fp32"

    @property
    def interleaved_rope(self) -> bool:
        """Query and key rows are stored pair by pair, as GGUF's ``llama`` converter orders them."""
        return self.gguf and self.architecture == "llama"
