"""Kimi delta attention on a card: rows of steps that accept and reject, against the reference row by row."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error
from tests.gpu.left_sums import meaning

from tandem.kernels.exl3.operands import Inputs, Sums
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.kda import reference
from tandem.kernels.kda.cuda import DeviceSlots, KdaRows, Runs, StepWeights

pytestmark = NEEDS_CARD
HEADS, SLOTS, NORM_EPS = 3, 4, 1e-5
WIDTH = HEADS * 128


def random_weights():
    def noise(*shape, scale=1.0):
        return scale * torch.randn(*shape, device=DEVICE)

    return StepWeights(
        small=torch.empty(0),
        forget_up=noise(WIDTH, 128, scale=128**-0.5).half(),
        gate_up=noise(WIDTH, 128, scale=128**-0.5).half(),
        conv=noise(3 * WIDTH, 4, scale=0.5),
        dt_bias=noise(WIDTH),
        a_log=noise(HEADS, scale=0.5),
        norm=1 + noise(128, scale=0.1),
    )


class Stream:
    """One sequence's inputs, and what the reference makes of them."""

    def __init__(self, tokens, bound, weights, svh):
        self.values = torch.randn(tokens, 3 * WIDTH, device=DEVICE)
        self.scale = torch.full((tokens,), 0.5, device=DEVICE)
        self.small = torch.randn(tokens, 2 * 128 + HEADS, device=DEVICE)
        qkv = hadamard(self.values * 0.5, 128) * svh.float()
        low, mixing = self.small[:, :256], self.small[:, 256:]
        mixed = reference.short_convolution(qkv, torch.zeros(3, 3 * WIDTH, device=DEVICE), weights.conv)
        q, k, v = (part.view(tokens, HEADS, 128) for part in mixed.chunk(3, dim=1))
        forget = (low[:, :128] @ weights.forget_up.float().T).view(tokens, HEADS, 128)
        g = reference.decay(forget, weights.dt_bias.view(HEADS, 128), weights.a_log, bound)
        gate = (low[:, 128:] @ weights.gate_up.float().T).view(tokens, HEADS, 128)
        state = torch.zeros(HEADS, 128, 128, device=DEVICE)
        q, k = reference.normalize(q), reference.normalize(k)
        beta = torch.sigmoid(mixing)
        o = torch.stack([reference.step(q[t], k[t], v[t], g[t], beta[t], state) for t in range(tokens)])
        self.expected = reference.gated_norm(o, gate, weights.norm, NORM_EPS).view(tokens, WIDTH)


def step(kernels, slots, weights, svh, suh, parts, runs_capacity=None):
    """parts: (stream, slot, first position, count) a run. Returns the rotated output, fp32 [R, H·128]."""
    rows = sum(count for _, _, _, count in parts)
    capacity = runs_capacity or rows

    def joined(name):
        return torch.cat([getattr(s, name)[first : first + count] for s, _, first, count in parts])

    def ints(values):
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    sums = Sums(joined("values")[None].contiguous(), None, joined("scale"))
    starts = torch.tensor([0, *(count for *_, count in parts)]).cumsum(0).tolist()
    starts += [rows] * (capacity - len(parts))
    positions = [first + i for _, _, first, count in parts for i in range(count)]
    slot_of = [slot for _, slot, _, _ in parts] + [SLOTS - 1] * (capacity - len(parts))
    out = Inputs(poisoned(rows, WIDTH), poisoned(rows, HEADS))
    runs = Runs(ints(positions), ints(starts), ints(slot_of))
    kernels.step(sums, svh, joined("small").contiguous(), weights, suh, slots, runs, out)
    assert torch.equal(out.peaks, out.rotated.view(rows, HEADS, 128).abs().amax(-1))
    return out.rotated


@pytest.fixture(params=[-5.0, None])
def scene(request):
    torch.manual_seed(7)
    weights = random_weights()
    svh = torch.randn(3 * WIDTH, device=DEVICE).half()
    suh = torch.where(torch.rand(WIDTH, device=DEVICE) < 0.5, -1.5, 1.5).half()
    kernels = KdaRows(DEVICE, CUBINS, request.param, NORM_EPS)
    streams = [Stream(40, request.param, weights, svh) for _ in range(3)]
    slots = DeviceSlots.zeros(SLOTS, HEADS, DEVICE)
    slots.pending.fill_(float("nan"))
    return kernels, slots, weights, svh, suh, streams


def plain(rotated, suh):
    return hadamard(rotated, 128) / suh.float()


def test_accepted_rows_alone_enter_the_state(scene):
    """Steps of 1 to 16 rows, of which some are accepted; rejected ones are computed again."""
    kernels, slots, weights, svh, suh, (stream, *_) = scene
    position = 0
    for count, accepted in ((1, 1), (5, 2), (16, 16), (8, 1), (1, 1), (16, 7), (3, 3), (9, 9)):
        rotated = step(kernels, slots, weights, svh, suh, [(stream, 1, position, count)])
        expected = stream.expected[position : position + count]
        assert relative_error(plain(rotated, suh), expected) < 1e-4
        position += accepted


def test_a_rows_bits_depend_on_its_own_sequence_alone(scene):
    kernels, slots, weights, svh, suh, streams = scene
    other = DeviceSlots.zeros(SLOTS, HEADS, DEVICE)
    places = [0, 0, 0]
    for counts in ((1, 4, 7), (16, 0, 0), (3, 2, 11), (0, 5, 5), (5, 5, 6), (1, 1, 1)):
        parts = [(streams[i], i, places[i], c) for i, c in enumerate(counts) if c]
        together = step(kernels, slots, weights, svh, suh, parts, runs_capacity=16)
        row = 0
        for stream, slot, first, count in parts:
            for i in range(count):
                alone = step(kernels, other, weights, svh, suh, [(stream, slot, first + i, 1)])
                assert torch.equal(alone[0], together[row])
                row += 1
            places[slot] += count


def test_three_projections_equal_the_fused_one(scene):
    kernels, slots, weights, svh, suh, (stream, *_) = scene
    fused = step(kernels, slots, weights, svh, suh, [(stream, 0, 0, 6)])
    values = stream.values[:6].view(1, 6, 3, WIDTH).transpose(1, 2).reshape(1, 18, WIDTH).contiguous()
    sums = Sums(values, None, stream.scale[:18])
    out = Inputs(poisoned(6, WIDTH), poisoned(6, HEADS))

    def ints(*given):
        return torch.tensor(given, dtype=torch.int32, device=DEVICE)

    runs = Runs(torch.arange(6, dtype=torch.int32, device=DEVICE), ints(0, 6), ints(2))
    kernels.step(sums, svh, stream.small[:6].contiguous(), weights, suh, slots, runs, out)
    assert torch.equal(out.rotated, fused)


def test_made_up_sums_mean_what_they_are_taken_for(scene):
    _, _, _, svh, _, (stream, *_) = scene
    sums = Sums(stream.values[None], None, stream.scale)
    expected = hadamard(stream.values * 0.5, 128) * svh.float()
    assert torch.equal(meaning(sums, svh, slice(0, 40), 3 * WIDTH), expected)
