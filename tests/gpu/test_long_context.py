"""Rows a million tokens deep, in pages so far into the caches that an offset needs more than 32 bits."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error

pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")

from tests.gpu.test_mla_step import attended

from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.indexer.chunk import score_chunk
from tandem.kernels.indexer.cuda import TopPools
from tandem.kernels.indexer.reference import score_pools, select_pools
from tandem.kernels.indexer.triton import score
from tandem.kernels.latent_q8 import reference as q8
from tandem.kernels.mla.chunk import ChunkAttention
from tandem.kernels.mla.cuda import DeviceCache
from tandem.kernels.mla.operands import Where
from tandem.kernels.mla.reference import latent_attention

pytestmark = NEEDS_CARD
TOKENS, PAGE, POOL, COUNT = 1_048_576, 256, 4, 512
PAGES, PER_PAGE = TOKENS // PAGE, PAGE // POOL
LATENT, HEADS, INDEX_HEADS, D = 512, 64, 4, 128
POSITIONS = [TOKENS - 1, TOKENS - 2, TOKENS * 2 // 3, 4 * COUNT - 2]
"""The last row sees all its pools."""
PAGES_BEFORE = 2**31 // (PAGE * LATENT) + 1
"""From here on an element of the latents has an index beyond 31 bits; a pool key's, 16 times as far."""


@pytest.fixture(autouse=True)
def _room():
    if torch.cuda.mem_get_info(DEVICE)[0] < 16 * 2**30:
        pytest.skip("takes 8 GiB of a card")


def where_behind(pages_before):
    """One run in pages that neither ascend nor begin at 0."""
    rows = len(POSITIONS)
    return Where(
        torch.tensor(POSITIONS, dtype=torch.int32).cuda(),
        torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        (pages_before + torch.randperm(PAGES)).int()[None].cuda(),
        poisoned(rows, COUNT, dtype=torch.int32),
        PAGE,
        POOL,
    )


def test_pools_are_scored_and_chosen():
    before = 16 * PAGES_BEFORE
    where = where_behind(before)
    pooled = torch.empty((before + PAGES) * PER_PAGE, D, dtype=torch.float16, device=DEVICE)
    pooled[before * PER_PAGE :].normal_()
    rows = len(POSITIONS)
    q, weights = (torch.randn(rows, INDEX_HEADS, *size, device=DEVICE) for size in ((D,), ()))
    scores, of_a_chunk = poisoned(rows, TOKENS // POOL), poisoned(rows, TOKENS // POOL)
    score(q, weights, pooled, where, scores)
    score_chunk(q.half(), weights, pooled, where, of_a_chunk)
    at = where.page_tables[0].long()[:, None] * PER_PAGE + torch.arange(PER_PAGE, device=DEVICE)
    keys = pooled[at.flatten()].double()
    visible = (torch.tensor(POSITIONS) + 1) // POOL
    for row, pools in enumerate(visible.tolist()):
        if pools <= COUNT:
            assert scores[row].isnan().all()
            assert of_a_chunk[row].isnan().all()
            continue
        one = slice(row, row + 1)
        for found, queries in ((scores, q), (of_a_chunk, q.half())):
            expected = score_pools(queries[one].double(), weights[one].double(), keys[:pools])[0]
            assert relative_error(found[row, :pools], expected) < 1e-5
            assert found[row, pools:].isnan().all()
    TopPools(DEVICE, CUBINS).select(scores, where.positions, where.chosen, POOL)
    mask = select_pools(scores.cpu().nan_to_num(-torch.inf), visible, COUNT)
    for row, pools in enumerate(visible.tolist()):
        if pools > COUNT:
            assert torch.equal(where.chosen[row].cpu().long(), mask[row].nonzero()[:, 0])


@pytest.mark.parametrize("eight_bit", [False, True])
def test_attention_reaches_the_chosen_tokens(eight_bit):
    where = where_behind(PAGES_BEFORE)
    tokens, own = (PAGES_BEFORE + PAGES) * PAGE, slice(PAGES_BEFORE * PAGE, None)
    nothing, scales = torch.empty(0, device=DEVICE), None
    latents = torch.empty(tokens, LATENT, dtype=torch.int8 if eight_bit else torch.float16, device=DEVICE)
    if eight_bit:
        latents[own].random_(-127, 128)
        scales = torch.empty(tokens, LATENT // 32, dtype=torch.float16, device=DEVICE)
        scales[own].uniform_(0.005, 0.02)
    else:
        latents[own].normal_()
    cache = DeviceCache(latents, scales, nothing, nothing)
    seen = []
    for row, position in enumerate(POSITIONS):
        pools = (position + 1) // POOL
        token = torch.arange(position + 1)
        if pools > COUNT:
            chosen = torch.cat(
                (torch.randperm(pools - 1)[: COUNT - 1].sort().values, torch.tensor([pools - 1]))
            )
            where.chosen[row] = chosen.int().cuda()
            members = chosen[:, None] * POOL + torch.arange(POOL)
            token = torch.cat((members.flatten(), token[pools * POOL :]))
        seen.append(where.page_tables[0].long()[token.cuda() // PAGE] * PAGE + token.cuda() % PAGE)
    q = torch.randn(len(POSITIONS), HEADS, LATENT, device=DEVICE) * LATENT**-0.5
    found = attended(where, cache, hadamard(q, 32) if eight_bit else q, block=HEADS)
    found = hadamard(found, 32) if eight_bit else found
    chunk, half = ChunkAttention(DEVICE, CUBINS), q.half()
    by_chunk = torch.full_like(half, float("nan"))
    if chunk.can(HEADS, cache):
        chunk.attend(half, cache, where, 1.0, by_chunk)
    for row, at in enumerate(seen):
        values = latents[at].float() if scales is None else q8.decode(latents[at], scales[at])
        expected = latent_attention(q[row : row + 1], values, None, 1.0)[0]
        assert relative_error(found[row], expected) < 2e-3
        if chunk.can(HEADS, cache):
            assert relative_error(by_chunk[row], expected) < (4e-3 if eight_bit else 2e-3)
