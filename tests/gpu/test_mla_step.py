"""Latent attention of few rows on a card, against the reference: norms, cache and index keys, queries into
latent space, the attention itself and the way out of it.
"""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, compile_ahead, poisoned, relative_error
from tests.gpu.left_sums import meaning, random_sums

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from tandem.kernels.exl3.cuda import ROW_BUCKETS, row_bucket
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Inputs
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.indexer import reference as indexer
from tandem.kernels.latent_q8 import reference as q8
from tandem.kernels.mla import reference
from tandem.kernels.mla.cuda import SOURCE, DeviceCache, MlaRows, MlaStepWeights
from tandem.kernels.mla.operands import Parts, Where, parts_for
from tandem.kernels.mla.triton import attend

pytestmark = NEEDS_CARD
HEADS, INDEX_HEADS, Q, N, L = 16, 4, 384, 128, 256
POOL, PAGE, PAGES, RUNS, COUNT, PART = 4, 16, 20, 3, 8, 64
RING, NORM_EPS = 32, 1e-5
KERNELS = MlaRows(DEVICE, CUBINS, NORM_EPS)


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_together():
    compile_ahead(*(SOURCE.with_defines(ROWS=rows, Q8=bit) for rows in ROW_BUCKETS for bit in (0, 1)))


def noise(*shape):
    return torch.randn(*shape, device=DEVICE)


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def random_weights():
    return MlaStepWeights(
        query_norm=noise(Q),
        latent_norm=noise(L),
        small=torch.empty(0),
        key_norm=noise(128),
        key_bias=noise(128),
        pool_bias=noise(POOL, 128),
        key_half=(noise(HEADS, N, L) * N**-0.5).half(),
        value_half=(noise(HEADS, L, N) * L**-0.5).half(),
    )


def stack_of(inputs, *outputs):
    """Only its scales are looked at."""
    codes = [torch.zeros(inputs // 16, n // 16, 16, dtype=torch.int16, device=DEVICE) for n in outputs]
    return Exl3Stack.of(
        [[Exl3Matrix(c, noise(inputs).half(), noise(n).half())] for c, n in zip(codes, outputs, strict=True)]
    )


def empty_cache(eight_bit):
    tokens = PAGES * RUNS * PAGE
    if eight_bit:
        latents = torch.full((tokens, L), 99, dtype=torch.int8, device=DEVICE)
        scales = poisoned(tokens, L // 32, dtype=torch.float16)
    else:
        latents, scales = poisoned(tokens, L, dtype=torch.float16), None
    pools = poisoned(tokens // POOL, 128, dtype=torch.float16)
    return DeviceCache(latents, scales, pools, poisoned(RUNS, RING, 2, 128))


def where_of(parts, count=COUNT):
    """parts: (run, first position, rows). Pages of runs interleave and descend."""
    tables = torch.arange(PAGES).flip(0) * RUNS + torch.arange(RUNS)[:, None]
    positions = [first + i for _, first, rows in parts for i in range(rows)]
    run_of_row = [run for run, _, rows in parts for _ in range(rows)]
    chosen = poisoned(len(positions), count, dtype=torch.int32)
    return Where(ints(positions), ints(run_of_row), tables.int().cuda(), chosen, PAGE, POOL)


def tokens_of(where, run, end):
    """Where the tokens of a run lie, int64 [end]."""
    at = torch.arange(end, device=DEVICE)
    return where.page_tables[run].long()[at // PAGE] * PAGE + at % PAGE


def decoded(cache, tokens):
    if cache.scales is None:
        return cache.latents[tokens].float()
    return q8.decode(cache.latents[tokens], cache.scales[tokens])


def enter(weights, stack, up_suh, cache, steps, sums, small):
    """Runs every step (one run each) and returns the rotated inputs of all rows, [2, R, Q]."""
    rotated, first = [], 0
    for run, position, rows in steps:
        own = slice(first, first + rows)
        both = [
            *range(first, first + rows),
            *range(sums.values.shape[1] // 2 + first, sums.values.shape[1] // 2 + first + rows),
        ]
        part = type(sums)(sums.values[:, both].contiguous(), None, sums.scale[both].contiguous())
        out = Inputs(poisoned(2 * rows, Q), poisoned(2 * rows, Q // 128))
        where = where_of([(0, position, rows)])
        where = Where(where.positions, where.run_of_row, where.page_tables[run:], where.chosen, PAGE, POOL)
        KERNELS.enter(
            part,
            stack,
            small[own].contiguous(),
            weights,
            up_suh,
            cache,
            where,
            ints([0, rows]),
            ints([run]),
            out,
        )
        rotated.append(out.rotated.view(2, rows, Q))
        first += rows
    return torch.cat(rotated, dim=1)


@pytest.mark.parametrize("eight_bit", [False, True])
def test_rows_enter_cache_and_index(eight_bit):
    """One run of 1 to 16 rows a step; a pool is complete only with its last row."""
    weights, stack, cache, run = random_weights(), stack_of(512, Q, L), empty_cache(eight_bit), 1
    up_suh = noise(2, Q).half()
    counts = [1, 2, 5, 16, 3, 13, 7]
    total = sum(counts)
    steps = [(run, sum(counts[:i]), count) for i, count in enumerate(counts)]
    sums, small = random_sums(2, 2 * total, max(Q, L)), noise(total, 256 + INDEX_HEADS)
    rotated = enter(weights, stack, up_suh, cache, steps, sums, small)

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight

    low = norm(meaning(sums, stack.svh[0][0], slice(0, total), Q), weights.query_norm)
    for group in range(2):
        assert relative_error(rotated[group], hadamard(low * up_suh[group].float(), 128)) < 1e-5
    latents = norm(meaning(sums, stack.svh[1][0], slice(total, 2 * total), L), weights.latent_norm)
    where = where_of([(run, 0, total)])
    tokens = tokens_of(where, run, total)
    found, limit = decoded(cache, tokens), 2e-2 if eight_bit else 3e-4
    assert relative_error(found, latents) < limit
    if eight_bit:
        codes, scales = q8.encode(latents)
        assert (cache.latents[tokens] != codes).float().mean() < 1e-3  # a rounding's tie
        assert (cache.scales[tokens] != scales).float().mean() < 2e-2
    untouched = torch.ones(cache.latents.shape[0], dtype=torch.bool, device=DEVICE)
    untouched[tokens] = False
    assert (cache.latents[untouched].isnan() if not eight_bit else cache.latents[untouched] == 99).all()

    keys = torch.nn.functional.layer_norm(small[:, :128], (128,), weights.key_norm, weights.key_bias, 1e-6)
    complete = total // POOL * POOL
    shape = (complete // POOL, POOL, 128)
    pooled = indexer.pool_keys(
        keys[:complete].view(shape), small[:complete, 128:256].reshape(shape), weights.pool_bias
    )
    assert relative_error(cache.pools[tokens[:complete:POOL] // POOL], pooled) < 1e-3
    assert cache.pools[tokens[complete] // POOL].isnan().all()
    tail = torch.arange(total - 4, total, device=DEVICE)
    assert relative_error(cache.ring[run, tail % RING, 0], keys[tail]) < 1e-5
    assert torch.equal(cache.ring[run, tail % RING, 1], small[tail, 128:256])


@pytest.mark.parametrize("eight_bit", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 16])
def test_queries_go_into_latent_space_and_results_out_of_it(rows, eight_bit):
    weights, cache = random_weights(), empty_cache(eight_bit)
    up = stack_of(Q, HEADS * N, INDEX_HEADS * 128)
    sums = random_sums(3, 2 * rows, HEADS * N)
    q, index_q = poisoned(rows, HEADS, L), poisoned(rows, INDEX_HEADS, 128)
    KERNELS.absorb(sums, up, weights, cache, q, index_q, row_bucket(rows))
    queries = meaning(sums, up.svh[0][0], slice(0, rows), HEADS * N).view(rows, HEADS, N) * N**-0.5
    expected = reference.absorb_query(queries, weights.key_half.float())
    assert relative_error(q, hadamard(expected, 32) if eight_bit else expected) < 1e-5
    index = meaning(sums, up.svh[1][0], slice(rows, 2 * rows), INDEX_HEADS * 128)
    assert relative_error(index_q.flatten(1), index) < 1e-5

    parts = Parts(noise(rows, 3, HEADS, L), noise(rows, 3, HEADS), torch.rand(rows, 3, HEADS, device=DEVICE))
    parts.totals[:, 1] = 0.0
    parts.attended[:, 1] = float("nan")
    parts.maxima[:, 1] = float("nan")
    suh, out = noise(HEADS * N).half(), Inputs(poisoned(rows, HEADS * N), poisoned(rows, HEADS * N // 128))
    KERNELS.unabsorb(parts, weights, cache, q, suh, out, row_bucket(rows))
    used = [0, 2]
    factors = torch.exp(parts.maxima[:, used] - parts.maxima[:, used].amax(1, keepdim=True))
    joined = (parts.attended[:, used] * factors[..., None]).sum(1)
    joined = joined / (parts.totals[:, used] * factors).sum(1)[..., None]
    joined = hadamard(joined, 32) if eight_bit else joined
    values = reference.unabsorb_output(joined, weights.value_half.float()).reshape(rows, -1)
    assert relative_error(out.rotated, hadamard(values * suh.float(), 128)) < 1e-5


def attended(where, cache, q, two_halves=True, part=PART, block=HEADS):
    rows, heads, latent = q.shape
    parts = parts_for(where.chosen.shape[1], POOL, part)
    out = Parts(
        poisoned(rows, parts, heads, latent), poisoned(rows, parts, heads), poisoned(rows, parts, heads)
    )
    attend(q, cache.latents, cache.scales, where, out, part, block, two_halves=two_halves)
    live = out.totals > 0
    maxima = torch.where(live, out.maxima, -torch.inf)
    factors = torch.exp(maxima - maxima.amax(1, keepdim=True))
    weighted = torch.where(live[..., None], out.attended, 0.0) * factors[..., None]
    return weighted.sum(1) / (out.totals * factors).sum(1)[..., None]


def filled_cache(eight_bit):
    cache = empty_cache(eight_bit)
    latents = noise(cache.latents.shape[0], L)
    if eight_bit:
        codes, scales = q8.encode(latents)
        cache.latents.copy_(codes)
        cache.scales.copy_(scales)
    else:
        cache.latents.copy_(latents.half())
    return cache


PLACES = [(0, 0, 3), (1, 31, 4), (2, 40, 1), (0, 63, 2), (1, 300, 5), (2, 319, 1)]
"""Short of the sparse limit (32 tokens), at it, and far past it: 16 rows."""


def chosen_of(where, seed):
    """Random pools for rows that see more than COUNT, ascending; poison elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    for row, position in enumerate(where.positions.tolist()):
        visible = (position + 1) // POOL
        if visible > COUNT:
            pools = torch.randperm(visible, generator=generator)[:COUNT].sort().values
            where.chosen[row] = pools.int().cuda()


@pytest.mark.parametrize("two_halves", [True, False])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_attention_equals_the_reference(eight_bit, two_halves):
    cache, where = filled_cache(eight_bit), where_of(PLACES)
    chosen_of(where, 1)
    q = noise(16, HEADS, L) * L**-0.5
    found = attended(where, cache, hadamard(q, 32) if eight_bit else q, two_halves)
    found = hadamard(found, 32) if eight_bit else found
    for row, position in enumerate(where.positions.tolist()):
        run, visible = int(where.run_of_row[row]), (position + 1) // POOL
        mask = torch.zeros(1, visible, dtype=torch.bool)
        if visible > COUNT:
            mask[0, where.chosen[row].cpu().long()] = True
        else:
            mask[:] = True
        seen = indexer.attended_tokens(mask, torch.tensor([position]), POOL, position + 1)
        latents = decoded(cache, tokens_of(where, run, position + 1))
        expected = reference.latent_attention(q[row : row + 1], latents, seen.cuda(), 1.0)
        # Weights are rounded to fp16 before they meet the latents, 8-bit latents too.
        assert relative_error(found[row], expected[0]) < 2e-3


@pytest.mark.parametrize("eight_bit", [False, True])
def test_a_rows_attention_depends_on_that_row_alone(eight_bit):
    cache, where = filled_cache(eight_bit), where_of(PLACES)
    chosen_of(where, 2)
    q = noise(16, HEADS, L) * L**-0.5
    together = attended(where, cache, q)
    for row in range(16):
        one = slice(row, row + 1)
        alone = Where(
            where.positions[one], where.run_of_row[one], where.page_tables, where.chosen[one], PAGE, POOL
        )
        assert torch.equal(attended(alone, cache, q[one].contiguous())[0], together[row])


@pytest.mark.parametrize("rows", [2, 9, 16])
def test_a_rows_projections_depend_on_that_row_alone(rows):
    weights, cache, up = random_weights(), empty_cache(False), stack_of(Q, HEADS * N, INDEX_HEADS * 128)
    sums, suh = random_sums(3, 2 * rows, HEADS * N), noise(HEADS * N).half()
    parts = Parts(noise(rows, 2, HEADS, L), noise(rows, 2, HEADS), torch.rand(rows, 2, HEADS, device=DEVICE))

    def through(which):
        count, both = len(which), [*which, *(rows + row for row in which)]
        own = type(sums)(sums.values[:, both].contiguous(), None, sums.scale[both].contiguous())
        q, index_q = poisoned(count, HEADS, L), poisoned(count, INDEX_HEADS, 128)
        KERNELS.absorb(own, up, weights, cache, q, index_q, row_bucket(count))
        some = Parts(*(part[which].contiguous() for part in (parts.attended, parts.maxima, parts.totals)))
        out = Inputs(poisoned(count, HEADS * N), poisoned(count, HEADS * N // 128))
        KERNELS.unabsorb(some, weights, cache, poisoned(count, HEADS, L), suh, out, row_bucket(count))
        return q, index_q, out.rotated

    together = through(list(range(rows)))
    for row in range(rows):
        for alone, beside in zip(through([row]), together, strict=True):
            assert torch.equal(alone[0], beside[row])
