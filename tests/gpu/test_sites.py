"""Hyper-connection sites on a card, of a step's rows and of a chunk's, against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error
from tests.gpu.left_sums import meaning, random_sums

from tandem.kernels.exl3.operands import Inputs
from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.hyper_connection import reference
from tandem.kernels.hyper_connection.cuda import SOURCE, Embedding, Output, Sites, SiteWeights, Streams
from tandem.kernels.nvrtc import kernel_module

pytestmark = NEEDS_CARD
ITERATIONS, EPS, NORM_EPS = 20, 1e-6, 1e-5
SITES = Sites(DEVICE, CUBINS, ITERATIONS, EPS, NORM_EPS)
WIDTHS = [128, 640, 4096]


def random_site(width):
    return SiteWeights(
        mixer=torch.randn(24, 4 * width, device=DEVICE) * (4 * width) ** -0.5,
        base=torch.randn(24, device=DEVICE),
        scale=torch.randn(3, device=DEVICE),
        norm=1 + 0.1 * torch.randn(width, device=DEVICE),
    )


def random_streams(rows, width):
    streams = Streams(poisoned(rows, 4, width), poisoned(rows, 24), poisoned(rows, width // 128, 25))
    streams.values.copy_(torch.randn(rows, 4, width))
    return streams


def mix_of(values, site):
    normalized = reference.normalize_streams(values, NORM_EPS)
    return reference.coefficients(normalized @ site.mixer.T, site.scale, site.base, ITERATIONS, EPS)


def normalized(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


def enter(streams, site, norm, suh):
    rows, _, width = streams.values.shape
    groups = suh.shape[0]
    inputs = Inputs(poisoned(groups * rows, width), poisoned(groups * rows, width // 128))
    x = poisoned(rows, width)
    SITES.enter(streams, site, norm, x, suh, inputs)
    return x, inputs


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 3, 8, 16])
def test_a_sublayer_is_entered_and_left(rows, width):
    site, following = random_site(width), random_site(width)
    streams, suh = random_streams(rows, width), torch.randn(2, width, device=DEVICE).half()
    before = streams.values.clone()
    SITES.leave(streams, None, site.mixer)
    assert torch.equal(streams.values, before)
    x, inputs = enter(streams, site, site.norm, suh)
    mix = mix_of(before, site)
    expected = normalized(reference.collapse(before, mix.pre), site.norm)
    assert relative_error(x, expected) < 3e-5
    for group in range(2):
        own = slice(group * rows, (group + 1) * rows)
        assert relative_error(inputs.rotated[own], hadamard(expected * suh[group].float(), 128)) < 3e-5
    blocks = inputs.rotated.view(2 * rows, -1, 128)
    assert torch.equal(inputs.peaks, blocks.abs().amax(-1))
    assert relative_error(streams.coefficients[:, 4:8], mix.post) < 3e-5
    assert relative_error(streams.coefficients[:, 8:], mix.mix.flatten(1)) < 3e-5

    sums, svh = random_sums(3, rows, width), torch.randn(1, width, device=DEVICE).half()
    SITES.leave(streams, Output(sums, svh), following.mixer)
    after = reference.expand(before, meaning(sums, svh[0], slice(0, rows), width), mix)
    assert relative_error(streams.values, after) < 3e-5
    x, _ = enter(streams, following, following.norm, suh)
    mix = mix_of(after, following)
    assert relative_error(x, normalized(reference.collapse(after, mix.pre), following.norm)) < 3e-5


@pytest.mark.parametrize("rows", [1, 7, 16])
def test_experts_outputs_are_weighted(rows):
    width, choices, matrices = 384, 9, 12
    site, streams = random_site(width), random_streams(rows, width)
    before = streams.values.clone()
    SITES.leave(streams, None, site.mixer)
    enter(streams, site, site.norm, torch.ones(1, width, device=DEVICE).half())
    pairs = rows * choices
    sums, svh = random_sums(2, pairs, width), torch.randn(matrices, width, device=DEVICE).half()
    pair_matrix = torch.randint(matrices, (pairs,), device=DEVICE)
    row_pair = torch.randperm(pairs, device=DEVICE).view(rows, choices)
    weights = torch.rand(rows, choices, device=DEVICE)
    SITES.leave(streams, Output(sums, svh, pair_matrix.int(), row_pair.int(), weights), None)
    of_pair = torch.stack([meaning(sums, svh[pair_matrix[pair]], [pair], width)[0] for pair in range(pairs)])
    output = (of_pair[row_pair] * weights[..., None]).sum(1)
    assert relative_error(streams.values, reference.expand(before, output, mix_of(before, site))) < 3e-5


@pytest.mark.parametrize("width", WIDTHS)
def test_streams_begin_as_the_embedding_and_end_as_their_mean(width):
    rows = 5
    streams = random_streams(rows, width)
    table, ids = torch.randn(50, width, device=DEVICE).half(), torch.randint(50, (rows,), device=DEVICE)
    SITES.leave(streams, Embedding(table, ids), None)
    assert torch.equal(streams.values, table[ids].float()[:, None].expand(rows, 4, width))
    streams.values.copy_(torch.randn(rows, 4, width))
    norm, suh = torch.randn(width, device=DEVICE), torch.randn(1, width, device=DEVICE).half()
    x, _ = enter(streams, None, norm, suh)
    assert relative_error(x, normalized(reference.mean_streams(streams.values), norm)) < 1e-5


@pytest.mark.parametrize("rows", [2, 9, 16])
def test_a_rows_bits_depend_on_that_row_alone(rows):
    width = 1024
    site, suh = random_site(width), torch.randn(1, width, device=DEVICE).half()
    values = torch.randn(rows, 4, width, device=DEVICE)
    sums, svh = random_sums(2, rows, width), torch.randn(1, width, device=DEVICE).half()

    def through(which):
        streams = random_streams(len(which), width)
        streams.values.copy_(values[which])
        SITES.leave(streams, None, site.mixer)
        _, inputs = enter(streams, site, site.norm, suh)
        own = type(sums)(sums.values[:, which].contiguous(), None, sums.scale[which].contiguous())
        SITES.leave(streams, Output(own, svh), site.mixer)
        return streams.values, streams.partial, inputs.rotated

    together = through(list(range(rows)))
    for row in range(rows):
        for alone, beside in zip(through([row]), together, strict=True):
            assert torch.equal(alone[0], beside[row])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 63, 500])
def test_a_chunks_rows_enter_and_leave(rows, width):
    module, site = kernel_module(SOURCE, DEVICE, CUBINS), random_site(width)
    values, suh = torch.randn(rows, 4, width, device=DEVICE), torch.randn(2, width, device=DEVICE).half()
    streams, coefficients, squares = values.clone(), poisoned(rows, 24), poisoned(rows)
    x, rotated = poisoned(rows, width, dtype=torch.float16), poisoned(2, rows, width, dtype=torch.float16)

    def leave(y, row_pair, row_weight, choices):
        module.launch(
            "leave_chunk",
            (rows, 1, 1),
            (256, 1, 1),
            streams,
            coefficients,
            y,
            row_pair,
            row_weight,
            None,
            None,
            squares,
            width,
            choices,
        )

    leave(None, None, None, 0)
    assert torch.equal(streams, values)
    projected = values.flatten(1) @ site.mixer.T
    module.launch(
        "enter_chunk",
        (rows, 1, 1),
        (256, 1, 1),
        streams,
        projected,
        squares,
        site.base,
        site.scale,
        site.norm,
        suh,
        coefficients,
        x,
        rotated,
        width,
        2,
        0,
        ITERATIONS,
        EPS,
        NORM_EPS,
        shared_bytes=4 * width,
    )
    mix = mix_of(values, site)
    expected = normalized(reference.collapse(values, mix.pre), site.norm)
    assert relative_error(x, expected) < 1e-3
    for group in range(2):
        assert relative_error(rotated[group], hadamard(expected * suh[group].float(), 128)) < 1e-3
    assert relative_error(coefficients[:, 4:], torch.cat((mix.post, mix.mix.flatten(1)), 1)) < 1e-4
    y = torch.randn(3 * rows, width, device=DEVICE).half()
    row_pair, weights = (
        torch.randperm(3 * rows, device=DEVICE).view(rows, 3),
        torch.rand(rows, 3, device=DEVICE),
    )
    leave(y, row_pair.int(), weights, 3)
    output = (y.float()[row_pair] * weights[..., None]).sum(1)
    assert relative_error(streams, reference.expand(values, output, mix)) < 3e-5
    assert relative_error(squares, streams.square().sum((1, 2))) < 3e-5
