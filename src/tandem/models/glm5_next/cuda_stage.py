"""The rows of a decode or verify step through consecutive layers on one CUDA card.

A ``RowsProgram`` is the list of launches for one number of rows, over fixed addresses and without a word to
the host, so that it is captured in a CUDA graph once and replayed. R rows, N = R runs (empty ones last).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tandem.cache.sizes import ring_tokens
from tandem.kernels.exl3.cuda import PASS_ROWS, Exl3Rows, row_bucket
from tandem.kernels.exl3.operands import Beside, Exl3Stack, Gated, Inputs, Jobs, Scratch, SiteErrand, Sums
from tandem.kernels.hyper_connection.cuda import Embedding, Output, Sites, SiteWeights, Streams
from tandem.kernels.indexer.cuda import TopPools, score_pitch
from tandem.kernels.indexer.triton import score
from tandem.kernels.kda.cuda import DeviceSlots, KdaRows, Runs
from tandem.kernels.linear.cuda import DenseRows
from tandem.kernels.mla.cuda import DeviceCache, MlaRows
from tandem.kernels.mla.operands import Parts, Where, parts_for
from tandem.kernels.mla.triton import attend
from tandem.kernels.moe.cuda import Rotation, Router, Routing, most_jobs
from tandem.models.glm5_next.cuda_head import DeviceHead, HeadProgram
from tandem.models.glm5_next.cuda_rows import RowsInput
from tandem.models.glm5_next.cuda_sizes import MAX_ROWS, PART_TOKENS
from tandem.models.glm5_next.cuda_weights import DeviceReader, KdaTensors, MlaTensors, MlpTensors
from tandem.models.glm5_next.dimensions import Glm5NextSpec

_BLOCK_HEADS = 16


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    attention_site: SiteWeights
    attention: KdaTensors | MlaTensors
    memory: DeviceSlots | DeviceCache
    feed_forward_site: SiteWeights
    feed_forward: MlpTensors


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """What the caches hold. One slot and one page beyond these belong to padding rows."""

    total_pages: int
    page_tokens: int
    max_slots: int
    max_pages: int
    """Pages a sequence can have."""
    eight_bit: bool


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """Weights and caches of consecutive layers."""

    spec: Glm5NextSpec
    room: CacheRoom
    layers: tuple[DeviceLayer, ...]
    embedding: torch.Tensor | None
    """fp16 [V, D]."""
    head: DeviceHead | None
    weight_bytes: int

    @property
    def cache_bytes(self) -> int:
        return sum(layer.memory.nbytes for layer in self.layers)

    @property
    def device(self) -> torch.device:
        return self.layers[0].feed_forward.gate_up.addresses.device

    def reset_slot(self, slot: int) -> None:
        for layer in self.layers:
            if isinstance(layer.memory, DeviceSlots):
                layer.memory.reset(slot)


def load_stage(
    spec: Glm5NextSpec,
    reader: DeviceReader,
    room: CacheRoom,
    device: torch.device,
    layers: range,
    *,
    embedding_on_host: bool = False,
) -> DeviceStage:
    """Read the layers' tensors and allocate their caches."""

    def layer(number: int) -> DeviceLayer:
        base = reader.names.layer(number)
        mla = spec.layer_is_mla[number]
        return DeviceLayer(
            reader.site(spec, base, "attn", "input_layernorm"),
            (reader.mla if mla else reader.kda)(spec, f"{base}.self_attn"),
            _latent_cache(spec, room, device)
            if mla
            else DeviceSlots.zeros(room.max_slots + 1, spec.kda_heads, device),
            reader.site(spec, base, "ffn", "post_attention_layernorm"),
            reader.mlp(spec, f"{base}.mlp", dense=spec.layer_is_dense[number]),
        )

    prefix = reader.names.prefix
    first, last = layers.start == 0, layers.stop == spec.num_layers
    embedding = None
    if first:  # before the layers: on its way to the host it takes memory that is theirs afterwards
        embedding = reader.table(f"{prefix}.embed_tokens.weight", on_host=embedding_on_host)
    built = tuple(layer(number) for number in layers)
    head = None
    if last:
        vocabulary = reader.stack([[reader.vocabulary(spec)]])
        head = DeviceHead(reader.floats(f"{prefix}.norm.weight"), vocabulary)
    return DeviceStage(spec, room, built, embedding, head, reader.weight_bytes)


def _latent_cache(spec: Glm5NextSpec, room: CacheRoom, device: torch.device) -> DeviceCache:
    tokens, latent = (room.total_pages + 1) * room.page_tokens, spec.kv_lora_rank
    dtype = torch.int8 if room.eight_bit else torch.float16
    groups = latent // 32
    return DeviceCache(
        torch.zeros(tokens, latent, dtype=dtype, device=device),
        torch.zeros(tokens, groups, dtype=torch.float16, device=device) if room.eight_bit else None,
        torch.zeros(tokens // spec.index_kpool, spec.index_head_dim, dtype=torch.float16, device=device),
        torch.zeros(room.max_slots + 1, ring_tokens(spec.index_kpool), 2, spec.index_head_dim, device=device),
    )


@dataclass(frozen=True, slots=True)
class AttentionMemory:
    """What latent attention of R rows leaves between its launches: by far the largest of a step's buffers."""

    scores: torch.Tensor
    """fp32 [R, most pools]."""
    q: torch.Tensor
    """fp32 [R, heads, latent]."""
    parts: Parts

    @classmethod
    def empty(cls, stage: DeviceStage, rows: int) -> AttentionMemory:
        spec, room, device = stage.spec, stage.room, stage.device
        parts = parts_for(spec.index_topk // spec.index_kpool, spec.index_kpool, PART_TOKENS)
        return cls(
            torch.empty(
                rows, score_pitch(room.max_pages * room.page_tokens // spec.index_kpool), device=device
            ),
            torch.empty(rows, spec.heads, spec.kv_lora_rank, device=device),
            Parts.empty(rows, parts, spec.heads, spec.kv_lora_rank, device),
        )

    def first(self, rows: int) -> AttentionMemory:
        return AttentionMemory(self.scores[:rows], self.q[:rows], self.parts.first(rows))


class RowsProgram:
    """The launches of one step of R rows. Results: ``streams.values`` and, with the head, ``logits``."""

    def __init__(
        self,
        stage: DeviceStage,
        rows: int,
        inputs: RowsInput,
        scratch: Scratch,
        cache_dir: Path | None,
        attention: AttentionMemory | None = None,
    ) -> None:
        """``attention``: memory that programs which never run at the same time share; else one's own."""
        spec, room, device = stage.spec, stage.room, stage.device
        self._stage = stage
        self._rows = rows
        self._bucket = row_bucket(rows)
        self._inputs = inputs
        self._scratch = scratch
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._exl3 = Exl3Rows(device, cache_dir, processors)
        self._sites = Sites(device, cache_dir, spec.sinkhorn_iterations, spec.streams_eps, spec.rms_norm_eps)
        self._dense = DenseRows(device, cache_dir)
        self._kda = KdaRows(device, cache_dir, spec.decay_lower_bound, spec.rms_norm_eps)
        self._mla = MlaRows(device, cache_dir, spec.rms_norm_eps)
        self._top = TopPools(device, cache_dir)
        shared = int(spec.shared_experts > 0)
        self._router = Router(
            device,
            cache_dir,
            spec.experts_per_token,
            shared,
            spec.normalize_experts,
            spec.routed_scaling,
            processors,
        )
        self._jobs = Jobs.dense(rows, device)
        choices = spec.experts_per_token + shared
        self._routing = Routing.empty(rows, spec.num_experts + shared, choices, device, PASS_ROWS)
        self.streams = Streams.empty(rows, spec.hidden_size, device)
        self._x = torch.empty(rows, spec.hidden_size, device=device)
        self._runs = Runs(inputs.positions[:rows], inputs.run_starts[: rows + 1], inputs.slots[:rows])
        pools = spec.index_topk // spec.index_kpool
        self._where = Where(
            inputs.positions[:rows],
            inputs.run_of_row[:rows],
            inputs.page_tables,
            torch.zeros(rows, pools, dtype=torch.int32, device=device),
            room.page_tokens,
            spec.index_kpool,
        )
        attention = (attention or AttentionMemory.empty(stage, rows)).first(rows)
        self._scores, self._q, self._parts = attention.scores, attention.q, attention.parts
        self._index_q = torch.empty(rows, spec.index_heads, spec.index_head_dim, device=device)
        self._small = torch.empty(
            rows * max(256 + spec.kda_heads, 256 + spec.index_heads, spec.num_experts), device=device
        )
        self._head: HeadProgram | None = None
        self.logits = self._x[:, :0]
        if stage.head is not None:
            self._head = HeadProgram(spec, stage.head, self.streams, scratch, cache_dir)
            self.logits = self._head.logits

    def run(self) -> None:
        """Queue the whole step."""
        stage = self._stage
        last: Output | Embedding | None = None
        if stage.embedding is not None:
            last = Embedding(stage.embedding, self._inputs.token_ids)
        for layer in stage.layers:
            self._sites.leave(self.streams, last, layer.attention_site.mixer)
            if isinstance(layer.attention, KdaTensors):
                last = self._kda_layer(layer, layer.attention)
            else:
                last = self._mla_layer(layer, layer.attention)
            self._sites.leave(self.streams, last, layer.feed_forward_site.mixer)
            last = self._mlp(layer.feed_forward_site, layer.feed_forward)
        self._sites.leave(self.streams, last, None)
        if self._head is not None:
            self._head.run()

    def _kda_layer(self, layer: DeviceLayer, tensors: KdaTensors) -> Output:
        assert isinstance(layer.memory, DeviceSlots)
        site, qkv = layer.attention_site, tensors.qkv
        inputs = self._scratch.inputs(qkv.groups * self._rows, qkv.inputs)
        errand = self._enter(site, self._x, qkv.suh, inputs)
        small = self._small_output(tensors.step.small)
        sums = self._product(inputs, qkv, self._jobs, Beside(errand, tensors.step.small, self._x, small))
        rotated = self._scratch.inputs(self._rows, tensors.out.inputs)
        self._kda.step(
            sums, qkv.svh[0], small, tensors.step, tensors.out.suh, layer.memory, self._runs, rotated
        )
        return Output(self._product(rotated, tensors.out, self._jobs), tensors.out.svh[0])

    def _mla_layer(self, layer: DeviceLayer, tensors: MlaTensors) -> Output:
        assert isinstance(layer.memory, DeviceCache)
        cache, site, rows = layer.memory, layer.attention_site, self._rows
        inputs = self._scratch.inputs(2 * rows, tensors.down.inputs)
        errand = self._sites.enter(
            self.streams, site, site.norm, self._x, tensors.down.suh, inputs, leave_errand=True
        )
        small = self._small_output(tensors.step.small)
        beside = Beside(errand, tensors.step.small, self._x, small)
        down = self._product(inputs, tensors.down, self._jobs, beside)
        inputs = self._scratch.inputs(2 * rows, tensors.up.inputs)
        self._mla.enter(
            down,
            tensors.down,
            small,
            tensors.step,
            tensors.up.suh,
            cache,
            self._where,
            self._runs.run_starts,
            self._runs.slots,
            inputs,
        )
        up = self._product(inputs, tensors.up, self._jobs)
        self._mla.absorb(up, tensors.up, tensors.step, cache, self._q, self._index_q, self._bucket)
        score(self._index_q, small[:, 256:], cache.pools, self._where, self._scores)
        self._top.select(
            self._scores, self._where.positions, self._where.chosen, self._stage.spec.index_kpool
        )
        block = min(self._stage.spec.heads, _BLOCK_HEADS)
        attend(self._q, cache.latents, cache.scales, self._where, self._parts, PART_TOKENS, block)
        rotated = self._scratch.inputs(rows, tensors.out.inputs)
        self._mla.unabsorb(self._parts, tensors.step, cache, self._q, tensors.out.suh, rotated, self._bucket)
        return Output(self._product(rotated, tensors.out, self._jobs), tensors.out.svh[0])

    def _mlp(self, site: SiteWeights, tensors: MlpTensors) -> Output:
        if tensors.router is None:
            inputs = self._scratch.inputs(2 * self._rows, tensors.gate_up.inputs)
            errand = self._sites.enter(
                self.streams, site, site.norm, None, tensors.gate_up.suh, inputs, leave_errand=True
            )
            sums = self._gated(inputs, tensors, self._jobs, Beside(errand))
            return Output(sums, tensors.down.svh[0])
        assert tensors.correction_bias is not None
        routing, jobs = self._routing, self._routing.jobs
        errand = self._enter(site, self._x, None, None)
        inputs = self._scratch.inputs(2 * jobs.capacity, tensors.gate_up.inputs)
        logits = self._small_output(tensors.router)
        self._dense.multiply(tensors.router, self._x, logits, self._bucket)
        rotation = Rotation(self._x, tensors.gate_up, inputs)
        self._router.route(logits, tensors.correction_bias, routing, rotation, errand)
        sums = self._gated(inputs, tensors, jobs)
        return Output(
            sums,
            tensors.down.svh[0],
            jobs.pair_matrix,
            routing.row_pair,
            routing.row_weight,
            routing.row_matrix,
        )

    def _gated(self, inputs: Inputs, tensors: MlpTensors, jobs: Jobs, beside: Beside | None = None) -> Sums:
        gate_up, down, limit = tensors.gate_up, tensors.down, self._stage.spec.swiglu_limit
        rotated = self._scratch.inputs(jobs.capacity, down.inputs, second=True)
        if not gate_up.integer:
            sums = self._product(inputs, gate_up, jobs, beside)
            self._exl3.finish_gate_up(sums, gate_up, down, jobs, rotated, limit)
            return self._product(rotated, down, jobs)
        ready = self._scratch.ready if down.integer else None
        gated = Gated(down, rotated, self._scratch.arrivals, limit, ready)
        self._product(inputs, gate_up, jobs, beside, gated)
        return self._product(rotated, down, jobs, awaits=ready)

    def _enter(
        self, site: SiteWeights, x: torch.Tensor | None, suh: torch.Tensor | None, inputs: Inputs | None
    ) -> SiteErrand | None:
        return self._sites.enter(self.streams, site, site.norm, x, suh, inputs, leave_errand=True)

    def _small_output(self, weight: torch.Tensor) -> torch.Tensor:
        """For the normalized input times a small matrix, [R, N]."""
        outputs = weight.shape[0]
        return self._small[: self._rows * outputs].view(self._rows, outputs)

    def _product(
        self,
        inputs: Inputs,
        stack: Exl3Stack,
        jobs: Jobs,
        beside: Beside | None = None,
        gated: Gated | None = None,
        *,
        awaits: torch.Tensor | None = None,
    ) -> Sums:
        if beside is not None and not stack.integer:
            self._apart(beside)
            beside = None
        most_rows = _job_rows(jobs, self._rows)
        splits = self._exl3.splits(stack, jobs, most_rows)
        out = self._scratch.outputs(splits, stack.groups * jobs.capacity, stack.widest, stack.integer)
        self._exl3.product(inputs, stack, jobs, out, most_rows, beside, gated, awaits=awaits)
        return out

    def _apart(self, beside: Beside) -> None:
        """Launches of its own for what the product of decoded weights does not take along."""
        if beside.weight is not None and beside.x is not None and beside.y is not None:
            self._dense.multiply(beside.weight, beside.x, beside.y, self._bucket, beside.errand)
        elif beside.errand is not None:
            self._sites.run_errand(beside.errand)


def _job_rows(jobs: Jobs, rows: int) -> int:
    """Most pairs of a job in a step of so many rows."""
    return rows if jobs.fixed else min(rows, PASS_ROWS)


def rows_scratch(stage: DeviceStage, cache_dir: Path | None) -> Scratch:
    """Memory for the products of any step of up to 16 rows."""
    spec = stage.spec
    choices = spec.experts_per_token + int(spec.shared_experts > 0)
    processors = torch.cuda.get_device_properties(stage.device).multi_processor_count
    exl3 = Exl3Rows(stage.device, cache_dir, processors)
    row_values, most_sums, most_pairs = 0, 0, 0
    for rows in range(1, MAX_ROWS + 1):
        dense = Jobs.dense(rows, stage.device)
        jobs_of_rows = most_jobs(rows * choices, spec.num_experts + 1, PASS_ROWS)
        routed = Jobs.empty(rows * choices, jobs_of_rows, stage.device)
        for stack, jobs in _products(stage, dense, routed):
            pairs = stack.groups * jobs.capacity
            total = exl3.splits(stack, jobs, _job_rows(jobs, rows)) * pairs
            row_values = max(row_values, pairs * stack.inputs)
            most_sums, most_pairs = max(most_sums, total * stack.widest), max(most_pairs, total)
    return Scratch.empty(row_values, most_sums, most_pairs, stage.device)


def _products(stage: DeviceStage, dense: Jobs, routed: Jobs) -> Iterator[tuple[Exl3Stack, Jobs]]:
    """Every product of a step with its jobs."""
    for layer in stage.layers:
        attention, mlp = layer.attention, layer.feed_forward
        first = (attention.qkv,) if isinstance(attention, KdaTensors) else (attention.down, attention.up)
        for stack in (*first, attention.out):
            yield stack, dense
        for stack in (mlp.gate_up, mlp.down):
            yield stack, dense if mlp.router is None else routed
    if stage.head is not None:
        yield stage.head.vocabulary, dense
