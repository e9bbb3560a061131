"""Bytes that a stage of GLM-5.3-Flash takes on a CUDA card beside weights and caches. Estimates; no torch.

Alphabet: D hidden, H heads, L latent, W recurrent width, C chunk_tokens, K experts a row meets.
"""

from __future__ import annotations

from tandem.core.plan import KIB
from tandem.models.glm5_next.dimensions import Glm5NextSpec

MAX_ROWS = 16
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Rows of the captured steps. A padding row meets experts of its own and costs as much as any other, so the
frequent counts have no padding."""
PART_TOKENS = 64
GRAPH_BYTES_PER_LAYER = 512 * KIB
"""All steps together. Measured: 14 MiB for the 45 layers of GLM-5.3-Flash."""
_LIBRARY_ROWS = 1024


def workspace_bytes(spec: Glm5NextSpec, chunk_tokens: int) -> int:
    """A chunk's activations at their widest, and the buffers of every captured step."""
    return chunk_tokens * _chunk_row_bytes(spec) + _decoded_bytes(spec, chunk_tokens) + _step_bytes(spec)


def workspace_bytes_per_token(spec: Glm5NextSpec, chunk_tokens: int) -> float:
    """Scores fp32 of every pool that a row may see, for a chunk's rows and a step's."""
    return 4 * (chunk_tokens + MAX_ROWS) / spec.index_kpool


def _chunk_row_bytes(spec: Glm5NextSpec) -> int:
    D, W, heads, latent = spec.hidden_size, spec.kda_width, spec.heads, spec.kv_lora_rank
    streams = 4 * spec.residual_width + 2 * D
    kda = 4 * 9 * W + 2 * 3 * W + 4 * D
    mla = 16 * heads * latent + 4 * heads * (spec.qk_head_dim + spec.v_head_dim) + 4 * D
    met = spec.experts_per_token + spec.shared_experts
    experts = 2 * met * (3 * D + 3 * spec.expert_intermediate_size)
    return streams + max(kda, mla, experts, 2 * (3 * D + 3 * spec.intermediate_size))


def _decoded_bytes(spec: Glm5NextSpec, chunk_tokens: int) -> int:
    """Large chunks decode a matrix that every row meets before it is multiplied."""
    if chunk_tokens < _LIBRARY_ROWS:
        return 0
    widest = max(3 * spec.kda_width, spec.heads * spec.qk_head_dim, spec.intermediate_size)
    return 2 * spec.hidden_size * widest


def _step_bytes(spec: Glm5NextSpec) -> int:
    """Attention in parts for 16 rows, streams and logits of every step, and the products' shared scratch."""
    parts = -(-(spec.index_topk + spec.index_kpool - 1) // PART_TOKENS)
    attended = 4 * (parts + 1) * spec.heads * spec.kv_lora_rank
    row = 4 * (2 * spec.residual_width + spec.vocab_size)
    pairs = MAX_ROWS * (spec.experts_per_token + spec.shared_experts)
    widest = max(spec.hidden_size, spec.expert_intermediate_size)
    return MAX_ROWS * attended + sum(ROW_COUNTS) * row + 2 * 4 * 4 * pairs * 2 * widest
