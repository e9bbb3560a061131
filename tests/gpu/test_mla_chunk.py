"""A chunk's latent attention by warp-group products against the specification in fp32."""

import pytest
import torch
from tests.gpu.cards import CUBINS

from tandem.kernels.latent_q8 import reference as q8
from tandem.kernels.mla.chunk import ChunkAttention
from tandem.kernels.mla.cuda import DeviceCache
from tandem.kernels.mla.operands import Where
from tandem.kernels.mla.reference import latent_attention
from tandem.kernels.nvrtc import capability_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA card")]
LATENT, PAGE, POOL, SCALE = 512, 256, 4, 0.0625


@pytest.fixture(scope="module")
def attention():
    if capability_of(0)[0] != 9:
        pytest.skip("the kernel is Hopper's")
    return ChunkAttention(torch.device("cuda", 0), CUBINS)


def cache_of(tokens, eight_bit=False):
    """Page 0 belongs to nobody."""
    latents = torch.full((tokens + PAGE, LATENT), float("nan"), dtype=torch.float16, device="cuda")
    latents[PAGE:] = torch.randn(tokens, LATENT, device="cuda")
    nothing = torch.empty(0, device="cuda")
    if not eight_bit:
        return DeviceCache(latents, None, nothing, nothing)
    codes = torch.full(latents.shape, -128, dtype=torch.int8, device="cuda")
    scales = torch.full((tokens + PAGE, LATENT // q8.GROUP), float("nan"), dtype=torch.float16, device="cuda")
    codes[PAGE:], scales[PAGE:] = q8.encode(latents[PAGE:].float())
    return DeviceCache(codes, scales, nothing, nothing)


def decoded(cache):
    """fp32 [tokens, 512]."""
    if cache.scales is None:
        return cache.latents.float()
    return q8.decode(cache.latents, cache.scales)


def run(attention, q, cache, positions, pages, chosen):
    device = q.device
    where = Where(
        torch.tensor(positions, dtype=torch.int32, device=device),
        torch.zeros(len(positions), dtype=torch.int32, device=device),
        torch.tensor([pages], dtype=torch.int32, device=device),
        chosen,
        PAGE,
        POOL,
    )
    out = torch.full_like(q, float("nan"))
    attention.attend(q, cache, where, SCALE, out)
    return out


@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("count", [16, 512])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_equals_the_specification(attention, heads, count, eight_bit):
    """Rows that see one token, a block's edge, all they have, and chosen pools with every length of tail."""
    tokens = 12 * PAGE
    positions = [0, 1, 62, 63, 64, 127, 128, 500, 2047, 2048, 2049, 2050, 2051, tokens - 1]
    pages = (torch.randperm(12) + 1).tolist()
    cache = cache_of(tokens, eight_bit)
    latents = decoded(cache)
    q = (3 * torch.randn(len(positions), heads, LATENT, device="cuda")).half()
    chosen = (
        torch.stack([torch.randperm(max(count, (p + 1) // POOL))[:count] for p in positions]).int().cuda()
    )
    found = run(attention, q, cache, positions, pages, chosen)
    for row, position in enumerate(positions):
        pools = (position + 1) // POOL
        seen = torch.arange(position + 1)
        if pools > count:
            first = chosen[row].cpu().long()[:, None] * POOL + torch.arange(POOL)
            seen = torch.cat((first.flatten(), torch.arange(pools * POOL, position + 1)))
        at = torch.tensor(pages)[seen // PAGE] * PAGE + seen % PAGE
        expected = latent_attention(q[row : row + 1].float(), latents[at.cuda()], None, SCALE)
        error = (found[row : row + 1].float() - expected).norm() / expected.norm()
        assert error < (4e-3 if eight_bit else 2e-3), (position, float(error))


@pytest.mark.parametrize("eight_bit", [False, True])
def test_a_rows_bits_are_its_own(attention, eight_bit):
    tokens = 4 * PAGE
    cache = cache_of(tokens, eight_bit)
    positions = list(range(700, 1020, 5))
    q = torch.randn(len(positions), 64, LATENT, device="cuda").half()
    chosen = torch.stack([torch.randperm(175)[:64] for _ in positions]).int().cuda()
    together = run(attention, q, cache, positions, [1, 2, 3, 4], chosen)
    again = run(attention, q, cache, positions, [1, 2, 3, 4], chosen)
    assert torch.equal(together, again)
    for row in (0, 17, 63):
        own = slice(row, row + 1)
        alone = run(attention, q[own].contiguous(), cache, positions[own], [1, 2, 3, 4], chosen[own])
        assert torch.equal(alone, together[own])
