"""Kimi delta attention of a prefill chunk on a card against the reference's blocked form."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error

from tandem.kernels.hadamard.reference import hadamard
from tandem.kernels.kda import reference
from tandem.kernels.kda.chunk import KdaChunk
from tandem.kernels.kda.cuda import StepWeights

pytestmark = NEEDS_CARD
HEADS, NORM_EPS = 3, 1e-5
WIDTH = HEADS * 128


def noise(*shape, scale=1.0):
    return scale * torch.randn(*shape, device=DEVICE)


def run(rows, length, bound, inputs):
    """-> o, rotated, and the state afterwards, from clones of what the kernels change."""
    kernels = KdaChunk(DEVICE, CUBINS)
    o, rotated = poisoned(rows, WIDTH), poisoned(rows, WIDTH, dtype=torch.float16)
    state, weights = inputs["state"].clone(), weights_of(inputs)
    qkv, forget, gate = (inputs[name][:rows] for name in ("qkv", "forget", "gate"))
    mixing = poisoned(rows, HEADS + 5)[:, 5:]
    mixing.copy_(inputs["mixing"][:rows])
    kernels.recur(qkv, forget, mixing, inputs["history"], state, weights, length, bound, o)
    kernels.finish(o, gate, weights, inputs["suh"], NORM_EPS, rotated)
    return o, rotated, state


def weights_of(inputs):
    unused = torch.empty(0)
    own = {name: inputs[name] for name in ("conv", "dt_bias", "a_log", "norm")}
    return StepWeights(small=unused, forget_up=unused, gate_up=unused, **own)


def random_inputs(rows):
    return {
        "qkv": noise(rows, 3 * WIDTH),
        "forget": noise(rows, WIDTH),
        "mixing": noise(rows, HEADS),
        "gate": noise(rows, WIDTH),
        "history": noise(3, 3 * WIDTH),
        "conv": noise(3 * WIDTH, 4, scale=0.5),
        "dt_bias": noise(WIDTH),
        "a_log": noise(HEADS, scale=0.5),
        "norm": 1 + noise(128, scale=0.1),
        "suh": noise(WIDTH).half(),
        "state": noise(HEADS, 128, 128, scale=0.1),
    }


def expected_of(rows, bound, inputs):
    """The reference knows the CPU alone."""
    given = {name: tensor.cpu() for name, tensor in inputs.items()}
    state = given["state"].clone()
    mixed = reference.short_convolution(given["qkv"][:rows], given["history"], given["conv"])
    q, k, v = (part.reshape(rows, HEADS, 128) for part in mixed.chunk(3, dim=1))
    forget = given["forget"][:rows].view(rows, HEADS, 128)
    g = reference.decay(forget, given["dt_bias"].view(HEADS, 128), given["a_log"], bound)
    beta = torch.sigmoid(given["mixing"][:rows])
    o = reference.chunked(reference.normalize(q), reference.normalize(k), v, g, beta, state)
    gate = given["gate"][:rows].view(rows, HEADS, 128)
    normed = reference.gated_norm(o, gate, given["norm"], NORM_EPS).reshape(rows, WIDTH)
    return o.reshape(rows, WIDTH), hadamard(normed * given["suh"].float(), 128), state


@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("rows", [1, 4, 18, 63, 500])
def test_equals_the_reference(rows, bound):
    inputs = random_inputs(rows)
    found, expected = run(rows, rows, bound, inputs), expected_of(rows, bound, inputs)
    for limit, got, wanted in zip((1e-4, 1e-3, 1e-4), found, expected, strict=True):
        assert relative_error(got, wanted) < limit


@pytest.mark.parametrize("length", [1, 40, 63])
def test_padding_changes_neither_rows_nor_state(length):
    inputs = random_inputs(64)
    padded, exact = run(64, length, -5.0, inputs), run(length, length, -5.0, inputs)
    for whole, part in zip(padded[:2], exact[:2], strict=True):
        assert torch.equal(whole[:length], part)
    assert torch.equal(padded[2], exact[2])


def test_in_place():
    """The output may take the place of the forget gates."""
    inputs = random_inputs(37)
    expected, _, state = run(37, 37, -5.0, inputs)
    forget, after = inputs["forget"].clone(), inputs["state"].clone()
    KdaChunk(DEVICE, CUBINS).recur(
        inputs["qkv"],
        forget,
        inputs["mixing"],
        inputs["history"],
        after,
        weights_of(inputs),
        37,
        -5.0,
        forget,
    )
    assert torch.equal(forget, expected)
    assert torch.equal(after, state)


def test_steep_decay_stays_finite():
    inputs = random_inputs(50)
    inputs["forget"] += 40.0
    found, expected = run(50, 50, None, inputs), expected_of(50, None, inputs)
    assert relative_error(found[0], expected[0]) < 1e-4
    assert relative_error(found[2], expected[2]) < 1e-4
