"""Bytes that a stage of GLM-5.3-Flash takes on a CUDA card beside weights and caches. Estimates; no torch.

Alphabet: D hidden, H heads, L latent, W recurrent width, C chunk_tokens, K experts a row meets.
"""

from __future__ import annotations

from tandem.core.cards import Capability
from tandem.core.plan import KIB, MIB
from tandem.kernels.mla.shapes import by_warp_groups
from tandem.kernels.sampling.operands import most_edits
from tandem.models.glm5_next.dimensions import Glm5NextSpec

MAX_ROWS = 16
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Rows of the captured steps. A padding row meets experts of its own and costs as much as any other, so the
frequent counts have no padding."""
PART_TOKENS = 64
GRAPH_BYTES_PER_LAYER = 512 * KIB
"""All steps together. Measured: 14 MiB for the 45 layers of GLM-5.3-Flash."""
FLOAT_ROWS = 512
"""Rows whose attention goes through fp32 copies at a time, where it does."""
_FLOAT_BYTES = 24
"""A value's copies: scaled, rotated, results and their parts."""
SCORES_BYTES = 128 * MIB
"""Scores of pools at a time in a chunk. At 1,048,576 tokens a row has 1 MiB of them, and 128 rows keep a
card's processors busy; up to 32,768 tokens a chunk of 4,096 goes in one piece."""
_LIBRARY_ROWS = 1024
_LIBRARY_BYTES = 32 * MIB
"""What cuBLAS keeps for itself on Hopper; less elsewhere."""


def attends_in_place(spec: Glm5NextSpec, capability: Capability | None) -> bool:
    """Whether a chunk's attention reads queries and writes results as they are.

    ``kernels/mla/chunk.py`` does, where it can. Elsewhere attention goes through fp32 copies.
    """
    return by_warp_groups(capability, spec.heads, spec.kv_lora_rank)


def workspace_bytes(spec: Glm5NextSpec, chunk_tokens: int, *, in_place: bool) -> int:
    """A chunk's activations at their widest, and the buffers of every captured step and of sampling.

    ``in_place``: see ``attends_in_place``.
    """
    chunk = chunk_tokens * _chunk_row_bytes(spec) + _decoded_bytes(spec, chunk_tokens)
    chunk += min(SCORES_BYTES, 4 * chunk_tokens * spec.context_tokens // spec.index_kpool)
    if not in_place:
        chunk += min(chunk_tokens, FLOAT_ROWS) * _FLOAT_BYTES * spec.heads * spec.kv_lora_rank
    return chunk + _step_bytes(spec) + 4 * most_edits(spec.vocab_size) + _LIBRARY_BYTES


def workspace_bytes_per_token(spec: Glm5NextSpec) -> float:
    """Scores fp32 of every pool that a row may see, for a step's rows."""
    return 4 * MAX_ROWS / spec.index_kpool


def _chunk_row_bytes(spec: Glm5NextSpec) -> int:
    """Streams, and the widest sublayer beside what the experts before it have made."""
    D, W, heads, latent = spec.hidden_size, spec.kda_width, spec.heads, spec.kv_lora_rank
    streams = 4 * spec.residual_width + 3 * D  # with a row's input, and partial projections
    met = spec.experts_per_token + spec.shared_experts
    # q, k, v, gate and decay fp32, and the records between the recurrence's kernels: 17 bytes a channel.
    kda = 38 * W + 4 * D
    index = 2 * spec.index_heads * spec.index_head_dim
    attention = 4 * heads * latent  # queries and results in fp16
    mla = attention + 2 * heads * (spec.qk_head_dim + 2 * spec.v_head_dim) + index + 4 * D
    experts = 2 * met * (2 * D + 3 * spec.expert_intermediate_size)
    return streams + 2 * met * D + max(kda, mla, experts, 2 * (2 * D + 3 * spec.intermediate_size))


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
