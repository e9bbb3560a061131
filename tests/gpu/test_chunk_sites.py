"""Sites of a prefill chunk, left and projected in one launch on a card, against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error

from tandem.kernels.hyper_connection import reference
from tandem.kernels.hyper_connection.chunk import ChunkOutput, ChunkSites, ChunkStreams
from tandem.kernels.hyper_connection.cuda import Embedding

pytestmark = NEEDS_CARD
SITES = ChunkSites(DEVICE, CUBINS, 20, 1e-6, 1e-5)


def streams_of(values, coefficients):
    rows, _, width = values.shape
    streams = ChunkStreams(
        values.clone(),
        coefficients.clone(),
        poisoned(rows, width // 128, 25),
        poisoned(rows, 24),
        poisoned(rows),
    )
    return streams


def left(values, output, coefficients):
    weights = reference.MixCoefficients(
        pre=coefficients[:, :4], post=coefficients[:, 4:8], mix=coefficients[:, 8:].view(-1, 4, 4)
    )
    return reference.expand(values.double(), output.double(), weights)


def check(streams, expected, mixer):
    """Streams, projections and squares of what the streams should be."""
    assert relative_error(streams.values, expected) < 1e-6
    flat = streams.values.flatten(1).double()
    assert relative_error(streams.projected, flat @ mixer.double().T) < 1e-5
    assert relative_error(streams.squares, flat.square().sum(1)) < 1e-6


@pytest.mark.parametrize("width", [128, 640, 4096])
@pytest.mark.parametrize("rows", [1, 63, 500])
@pytest.mark.parametrize("choices", [1, 9])
def test_an_output_enters_the_streams(rows, width, choices):
    values, coefficients = torch.randn(rows, 4, width, device=DEVICE), torch.rand(rows, 24, device=DEVICE)
    mixer = torch.randn(24, 4 * width, device=DEVICE) * (4 * width) ** -0.5
    streams = streams_of(values, coefficients)
    y = torch.randn(choices * rows, width, device=DEVICE).half()
    if choices == 1:
        SITES.leave(streams, ChunkOutput(y), mixer)
        output = y.float()
    else:
        pairs = torch.randperm(choices * rows, device=DEVICE).view(rows, choices)
        weights = torch.rand(rows, choices, device=DEVICE)
        SITES.leave(streams, ChunkOutput(y, pairs.int(), weights), mixer)
        output = (y.float()[pairs] * weights[..., None]).sum(1)
    check(streams, left(values, output, coefficients), mixer)


@pytest.mark.parametrize("rows", [5, 300])
def test_streams_begin(rows):
    width = 640
    mixer = torch.randn(24, 4 * width, device=DEVICE) * 0.02
    values = torch.randn(rows, 4, width, device=DEVICE)
    streams = streams_of(values, poisoned(rows, 24))
    SITES.leave(streams, None, mixer)
    check(streams, values, mixer)
    assert torch.equal(streams.values, values)
    table, ids = torch.randn(50, width, device=DEVICE).half(), torch.randint(50, (rows,), device=DEVICE)
    streams = streams_of(poisoned(rows, 4, width), poisoned(rows, 24))
    SITES.leave(streams, Embedding(table, ids), mixer)
    expected = table[ids].float()[:, None].expand(rows, 4, width)
    check(streams, expected, mixer)


def test_a_rows_bits_depend_on_that_row_alone():
    rows, width = 300, 1024
    values, coefficients = torch.randn(rows, 4, width, device=DEVICE), torch.rand(rows, 24, device=DEVICE)
    mixer, y = torch.randn(24, 4 * width, device=DEVICE), torch.randn(rows, width, device=DEVICE).half()

    def through(which):
        streams = streams_of(values[which], coefficients[which])
        SITES.leave(streams, ChunkOutput(y[which].contiguous()), mixer)
        return streams

    together = through(slice(0, rows))
    for own in (slice(7, 8), slice(250, 299)):
        alone = through(own)
        assert torch.equal(alone.values, together.values[own])
        assert torch.equal(alone.projected, together.projected[own])
        assert torch.equal(alone.squares, together.squares[own])
