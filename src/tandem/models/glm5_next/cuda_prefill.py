"""One chunk of one prompt through consecutive layers on a CUDA card.

Always multiplied as C rows, whatever ``length`` is. Activations enter products as fp16, everything recurrent,
normalized or exponentiated stays fp32. Attention is the step's: every row over the tokens it may see.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.exl3.chunk import LIBRARY_ROWS, Exl3Chunk
from tandem.kernels.exl3.operands import Exl3Stack
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.hyper_connection.chunk import ChunkOutput, ChunkSites, ChunkStreams
from tandem.kernels.hyper_connection.cuda import Embedding, SiteWeights
from tandem.kernels.indexer.chunk import score_chunk
from tandem.kernels.indexer.cuda import TopPools, score_pitch
from tandem.kernels.kda.chunk import KdaChunk
from tandem.kernels.kda.cuda import DeviceSlots
from tandem.kernels.latent_q8 import reference as q8
from tandem.kernels.mla.chunk import ChunkAttention
from tandem.kernels.mla.cuda import DeviceCache
from tandem.kernels.mla.operands import Parts, Where, parts_for
from tandem.kernels.mla.triton import attend
from tandem.kernels.moe.chunk import ChunkRouter
from tandem.models.glm5_next.cuda_head import DeviceHead
from tandem.models.glm5_next.cuda_sizes import FLOAT_ROWS, SCORES_BYTES
from tandem.models.glm5_next.cuda_stage import DeviceStage
from tandem.models.glm5_next.cuda_weights import KdaTensors, MlaTensors, MlpTensors

_PART_TOKENS = 2080
_BLOCK_HEADS = 64
_INDEX_DIM = 128


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """A chunk's description; tensors on the card."""

    token_ids: torch.Tensor
    """int64 [C]."""
    slot: int
    start: int
    length: int
    page_table: torch.Tensor
    """int32 [1, max_pages]."""


class PrefillProgram:
    """Launches for chunks of C rows; ``run`` returns the streams fp32 [C, 4, D]."""

    def __init__(
        self,
        stage: DeviceStage,
        chunk_tokens: int,
        cache_dir: Path | None,
        *,
        scores_bytes: int = SCORES_BYTES,
    ) -> None:
        """``scores_bytes``: of pools' scores at a time; how many does not show in the result."""
        spec, device = stage.spec, stage.device
        self._scores_bytes = scores_bytes
        self._stage, self._rows, self._cache_dir = stage, chunk_tokens, cache_dir
        self._exl3 = Exl3Chunk(device, cache_dir)
        self._top = TopPools(device, cache_dir)
        self._attention = ChunkAttention(device, cache_dir)
        self._recurrence = KdaChunk(device, cache_dir)
        self._dense = Blocks.dense(chunk_tokens, device)
        self._sites = ChunkSites(
            device, cache_dir, spec.sinkhorn_iterations, spec.streams_eps, spec.rms_norm_eps
        )
        self._streams = ChunkStreams.empty(chunk_tokens, spec.hidden_size, device)
        self._x = torch.empty(chunk_tokens, spec.hidden_size, dtype=torch.float16, device=device)
        self._run_of_row = torch.zeros(chunk_tokens, dtype=torch.int32, device=device)

    @property
    def streams(self) -> torch.Tensor:
        """fp32 [C, 4, D]."""
        return self._streams.values

    def run(self, chunk: ChunkInput) -> torch.Tensor:
        stage = self._stage
        last: ChunkOutput | Embedding | None = None
        if stage.embedding is not None:
            last = Embedding(stage.embedding, chunk.token_ids)
        for layer in stage.layers:
            self._sites.leave(self._streams, last, layer.attention_site.mixer)
            if isinstance(layer.attention, KdaTensors):
                last = self._kda(layer.attention_site, layer.attention, layer.memory, chunk)
            else:
                last = self._mla(layer.attention_site, layer.attention, layer.memory, chunk)
            self._sites.leave(self._streams, last, layer.feed_forward_site.mixer)
            last = self._mlp(layer.feed_forward_site, layer.feed_forward)
        self._sites.leave(self._streams, last, None)
        return self.streams

    def logits(self, head: DeviceHead, rows: slice) -> torch.Tensor:
        """fp32 [R, V] of some of the last chunk's rows; rows lie apart by V and its padding."""
        rotated = self._halves(1, self._rows, head.vocabulary.inputs)
        self._sites.enter(self._streams, None, head.norm, head.vocabulary.suh, self._x, rotated)
        chosen = rotated[:, rows].contiguous()
        y = torch.empty(chosen.shape[1], head.vocabulary.outputs[0], device=chosen.device)
        blocks = Blocks.dense(chosen.shape[1], chosen.device)
        self._exl3.product(chosen, head.vocabulary, blocks, (y,))
        return y[:, : self._stage.spec.vocab_size]

    def _kda(
        self, site: SiteWeights, tensors: KdaTensors, slots: DeviceSlots | DeviceCache, chunk: ChunkInput
    ) -> ChunkOutput:
        assert isinstance(slots, DeviceSlots)
        spec, rows, device = self._stage.spec, self._rows, self._x.device
        width = spec.kda_width
        inputs = self._halves(tensors.qkv.groups, rows, tensors.qkv.inputs)
        self._sites.enter(self._streams, site, site.norm, tensors.qkv.suh, self._x, inputs)
        small = torch.mm(self._x, tensors.step.small.T, out_dtype=torch.float32)
        forget = torch.mm(small[:, :128].half(), tensors.step.forget_up.T, out_dtype=torch.float32)
        gate = torch.mm(small[:, 128:256].half(), tensors.step.gate_up.T, out_dtype=torch.float32)
        groups = tensors.qkv.groups
        parts = [torch.empty(rows, 3 * width // groups, device=device) for _ in range(groups)]
        for group, part in enumerate(parts):
            self._exl3.product(inputs[group : group + 1], tensors.qkv.group(group), self._dense, (part,))
        qkv = parts[0] if groups == 1 else torch.cat(parts, dim=1)
        history, state = slots.history[chunk.slot], slots.state[chunk.slot]
        bound, mixing = spec.decay_lower_bound, small[:, 256:]
        self._recurrence.recur(qkv, forget, mixing, history, state, tensors.step, chunk.length, bound, forget)
        past = torch.cat((history, qkv[max(0, chunk.length - 3) : chunk.length]))[-3:]
        history.copy_(past)
        slots.committed[chunk.slot] = chunk.start + chunk.length
        rotated = self._halves(1, rows, width)
        self._recurrence.finish(forget, gate, tensors.step, tensors.out.suh, spec.rms_norm_eps, rotated)
        return ChunkOutput(self._one_product(rotated, tensors.out))

    def _mla(
        self, site: SiteWeights, tensors: MlaTensors, cache: DeviceSlots | DeviceCache, chunk: ChunkInput
    ) -> ChunkOutput:
        assert isinstance(cache, DeviceCache)
        spec, rows, device, room = self._stage.spec, self._rows, self._x.device, self._stage.room
        step, heads, latent = tensors.step, spec.heads, spec.kv_lora_rank
        inputs = self._halves(2, rows, tensors.down.inputs)
        self._sites.enter(self._streams, site, site.norm, tensors.down.suh, self._x, inputs)
        small = torch.mm(self._x, step.small.T, out_dtype=torch.float32)
        low = torch.empty(rows, spec.q_lora_rank, device=device)
        latents = torch.empty(rows, latent, device=device)
        self._exl3.product(inputs, tensors.down, self._dense, (low, latents))
        low = torch.nn.functional.rms_norm(low, low.shape[1:], step.query_norm, spec.rms_norm_eps)
        latents = torch.nn.functional.rms_norm(
            latents, latents.shape[1:], step.latent_norm, spec.rms_norm_eps
        )
        self._store(cache, step.key_norm, step.key_bias, step.pool_bias, latents, small, chunk)
        inputs = self._halves(2, rows, tensors.up.inputs)
        self._exl3.rotate(low.half(), tensors.up.suh, self._dense, inputs)
        queries = self._halves(rows, heads, spec.qk_head_dim)
        index_q = self._halves(rows, spec.index_heads, _INDEX_DIM)
        self._exl3.product(inputs, tensors.up, self._dense, (queries, index_q))
        q = self._halves(rows, heads, latent)
        torch.bmm(queries.transpose(0, 1), step.key_half, out=q.transpose(0, 1))
        pools = spec.index_topk // spec.index_kpool
        where = Where(
            torch.arange(chunk.start, chunk.start + rows, dtype=torch.int32, device=device),
            self._run_of_row,
            chunk.page_table,
            torch.empty(rows, pools, dtype=torch.int32, device=device),
            room.page_tokens,
            spec.index_kpool,
        )
        visible = (chunk.start + rows) // spec.index_kpool
        if visible > pools:
            self._choose(index_q, small[:, 256:], cache.pools, where, score_pitch(visible))
        if self._attention.can(heads, cache):
            attended = torch.empty_like(q)
            self._attention.attend(q, cache, where, spec.qk_head_dim**-0.5, attended)
        else:
            attended = self._attend_anywhere(q, cache, where)
        values = self._halves(rows, heads, step.value_half.shape[2])
        torch.bmm(attended.transpose(0, 1), step.value_half, out=values.transpose(0, 1))
        rotated = self._halves(1, rows, tensors.out.inputs)
        self._exl3.rotate(values.view(rows, -1), tensors.out.suh, self._dense, rotated)
        return ChunkOutput(self._one_product(rotated, tensors.out))

    def _choose(
        self, q: torch.Tensor, head_weights: torch.Tensor, pools: torch.Tensor, where: Where, pitch: int
    ) -> None:
        """Fill ``where.chosen``, as many rows at a time as their scores have room; of short contexts all."""
        # In sixteens: Triton compiles another kernel for sizes and addresses that are no multiple of 16.
        some = min(self._rows, max(self._scores_bytes // (4 * pitch) // 16, 1) * 16)
        scores = torch.empty(some, pitch, device=q.device)
        for begin in range(0, self._rows, some):
            own = slice(begin, min(begin + some, self._rows))
            its_where, its_scores = where.rows(own), scores[: own.stop - begin]
            score_chunk(q[own], head_weights[own], pools, its_where, its_scores)
            self._top.select(its_scores, its_where.positions, its_where.chosen, where.pool_tokens)

    def _attend_anywhere(self, q: torch.Tensor, cache: DeviceCache, where: Where) -> torch.Tensor:
        """On any card, over fp16 or int8 latents: q fp16 [C, H, L] -> fp16 [C, H, L]."""
        rows, heads, latent = q.shape
        attended = torch.empty_like(q)
        count = parts_for(where.chosen.shape[1], where.pool_tokens, _PART_TOKENS)
        parts = Parts.empty(min(rows, FLOAT_ROWS), count, heads, latent, q.device)
        for begin in range(0, rows, FLOAT_ROWS):
            own = slice(begin, min(begin + FLOAT_ROWS, rows))
            scaled = q[own].float() * self._stage.spec.qk_head_dim**-0.5
            if cache.scales is not None:
                scaled = hadamard(scaled, q8.GROUP)
            some, its_where = parts.first(scaled.shape[0]), where.rows(own)
            block = min(heads, _BLOCK_HEADS)
            attend(
                scaled, cache.latents, cache.scales, its_where, some, _PART_TOKENS, block, two_halves=False
            )
            found = some.attended[:, 0] / some.totals[:, 0, :, None]
            attended[own] = found if cache.scales is None else hadamard(found, q8.GROUP)
        return attended

    def _store(
        self,
        cache: DeviceCache,
        key_norm: torch.Tensor,
        key_bias: torch.Tensor,
        pool_bias: torch.Tensor,
        latents: torch.Tensor,
        small: torch.Tensor,
        chunk: ChunkInput,
    ) -> None:
        """Latents, complete pools and the raw tail of the chunk's ``length`` rows."""
        page, kpool = self._stage.room.page_tokens, self._stage.spec.index_kpool
        positions = torch.arange(chunk.start, chunk.start + chunk.length, device=latents.device)
        tokens = chunk.page_table[0].long()[positions // page] * page + positions % page
        if cache.scales is None:
            cache.latents[tokens] = latents[: chunk.length].clamp(-65504.0, 65504.0).half()
        else:
            cache.latents[tokens], cache.scales[tokens] = q8.encode(latents[: chunk.length])
        keys = torch.nn.functional.layer_norm(small[:, :128], (128,), key_norm, key_bias, 1e-6)
        gates = small[:, 128:256]
        weights = torch.softmax(gates.view(-1, kpool, 128) + pool_bias, dim=1)
        pooled = (keys.view(-1, kpool, 128) * weights).sum(1).clamp(-65504.0, 65504.0)
        complete = chunk.length // kpool
        cache.pools[tokens[: complete * kpool : kpool] // kpool] = pooled[:complete].half()
        tail = slice(complete * kpool, chunk.length)
        ring = cache.ring[chunk.slot]
        ring[positions[tail] % ring.shape[0]] = torch.stack((keys[tail], gates[tail]), dim=1)

    def _mlp(self, site: SiteWeights, tensors: MlpTensors) -> ChunkOutput:
        spec, rows = self._stage.spec, self._rows
        gate_up = tensors.gate_up
        if tensors.router is None:
            inputs = self._halves(2, rows, gate_up.inputs)
            self._sites.enter(self._streams, site, site.norm, gate_up.suh[:, 0], self._x, inputs)
            y = self._halves(rows, spec.hidden_size)
            self._gated(inputs, gate_up, tensors.down, self._dense, y)
            return ChunkOutput(y)
        assert tensors.correction_bias is not None
        shared = tensors.shared if rows >= LIBRARY_ROWS else None  # else a matrix like the routed ones
        own = self._halves(2, rows, gate_up.inputs) if shared else None
        self._sites.enter(
            self._streams, site, site.norm, shared.gate_up.suh if shared else None, self._x, own
        )
        router = ChunkRouter(
            self._x.device,
            self._cache_dir,
            spec.experts_per_token,
            0 if shared else gate_up.matrices - spec.num_experts,
            spec.normalize_experts,
            spec.routed_scaling,
        )
        logits = torch.mm(self._x, tensors.router.T, out_dtype=torch.float32)
        routed = router.route(logits, tensors.correction_bias)
        pairs = routed.blocks.pairs
        y = self._halves(pairs + rows, spec.hidden_size)
        inputs = self._halves(2, pairs, gate_up.inputs)
        self._exl3.rotate(self._x, gate_up.suh, routed.blocks, inputs)
        self._gated(inputs, gate_up, tensors.down, routed.blocks, y[:pairs])
        if shared is None or own is None:
            return ChunkOutput(y, routed.row_pair, routed.row_weight)
        self._gated(own, shared.gate_up, shared.down, self._dense, y[pairs:])
        row_pair = torch.cat((routed.row_pair, self._rows_after(pairs)), dim=1)
        return ChunkOutput(y, row_pair, torch.nn.functional.pad(routed.row_weight, (0, 1), value=1.0))

    def _rows_after(self, pairs: int) -> torch.Tensor:
        """Where the rows' own outputs lie behind those of so many pairs: int32 [C, 1]."""
        return torch.arange(pairs, pairs + self._rows, dtype=torch.int32, device=self._x.device)[:, None]

    def _gated(
        self, inputs: torch.Tensor, gate_up: Exl3Stack, down: Exl3Stack, blocks: Blocks, y: torch.Tensor
    ) -> None:
        """Rotated inputs fp16 [2, P, D] of gate and up -> y fp16 [P, D]."""
        pairs, width = inputs.shape[1], down.inputs
        both = self._halves(2, pairs, width)
        self._exl3.product(inputs, gate_up, blocks, (both[0], both[1]))
        rotated = self._halves(1, pairs, width)
        self._exl3.gate_up(both[0], both[1], down, blocks, rotated, self._stage.spec.swiglu_limit)
        self._exl3.product(rotated, down, blocks, (y,))

    def _one_product(self, rotated: torch.Tensor, stack: Exl3Stack) -> torch.Tensor:
        y = self._halves(rotated.shape[1], stack.outputs[0])
        self._exl3.product(rotated, stack, self._dense, (y,))
        return y

    def _halves(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float16, device=self._x.device)
