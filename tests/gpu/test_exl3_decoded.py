"""EXL3 of every codebook and rate on a card: the format's own bits, products against the exact decode, and
rows that do not see each other.
"""

import hashlib
import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.gpu.cards import CUBINS, DEVICE, NEEDS_CARD, poisoned, relative_error
from tests.gpu.test_exl3_rows import run

from tandem.kernels.exl3.blocks import Blocks
from tandem.kernels.exl3.chunk import LIBRARY_ROWS, Exl3Chunk
from tandem.kernels.exl3.cuda import ROW_BUCKETS, Exl3Rows
from tandem.kernels.exl3.decoded import DecodedChunk
from tandem.kernels.exl3.operands import Exl3Matrix, Exl3Stack, Form, Jobs
from tandem.kernels.exl3.plain import plain_matrix
from tandem.kernels.exl3.reference import CODEBOOKS, decode_inner, exl3_linear
from tandem.kernels.nvrtc import compile_together, noting_launches

pytestmark = NEEDS_CARD

FORMS = [Form(codebook, bits) for codebook in CODEBOOKS for bits in range(1, 9)]
FORMS += [Form("mul1", bits) for bits in (1.5, 2.5, 3.5)]
DECODED = [form for form in FORMS if not form.is_integer]
SOME = [Form("mcg", 4), Form("3inst", 3), Form("mul1", 2.5)]
DATA = Path(__file__).parents[1] / "exl3" / "data"
EXACT = 1e-5
"""Activations keep about 22 bits, sums are fp32."""


ROWS, CHUNK, DECODER = Exl3Rows(DEVICE, CUBINS, 132), Exl3Chunk(DEVICE, CUBINS), DecodedChunk(DEVICE, CUBINS)


def matrix_of(form, inputs, outputs, seed, biased=False):
    generator = torch.Generator().manual_seed(seed)
    shape = (inputs // 16, outputs // 16, int(16 * form.bits))
    trellis = torch.randint(-32768, 32768, shape, generator=generator, dtype=torch.int16)
    suh = torch.randn(inputs, generator=generator).half()
    # None of them tiny: biases are added before they scale, and would lose digits there.
    svh = torch.randn(outputs, generator=generator)
    svh = (svh.sign() * (0.5 + svh.abs())).half()
    bias = 20 * torch.randn(outputs, generator=generator).half() if biased else None
    return Exl3Matrix(
        trellis.cuda(), suh.cuda(), svh.cuda(), form.codebook, None if bias is None else bias.cuda()
    )


def expected_of(x, matrix):
    y = exl3_linear(x, matrix.trellis.cpu(), matrix.suh.cpu(), matrix.svh.cpu(), matrix.codebook)
    return y if matrix.bias is None else y + matrix.bias.cpu().float()


@pytest.fixture(scope="module", autouse=True)
def kernels_compiled_together():
    with noting_launches() as modules:
        for form in FORMS:
            stack = Exl3Stack.of([[matrix_of(form, 128, 128, seed=0)]])
            DECODER.decode(stack, 0, poisoned(128, 128, dtype=torch.float16))
            if not form.is_integer:
                chunk_product(stack, torch.randn(1, 128).half(), Blocks.dense(1, DEVICE))
            for rows in ROW_BUCKETS if form in SOME else (5,):
                run(ROWS, stack, torch.randn(rows, 128).cuda())
        stack = Exl3Stack.of([[plain_matrix(torch.randn(128, 128).cuda())]])
        for rows in ROW_BUCKETS:
            run(ROWS, stack, torch.randn(rows, 128).cuda())
    compile_together(modules)


@pytest.mark.parametrize("name", sorted(json.loads((DATA / "exl3_inner_sha256.json").read_text())))
def test_decoded_tiles_have_the_formats_own_bits(name):
    parts = {
        part: load_file(DATA / "exl3_vectors.safetensors")[f"{name}.{part}"]
        for part in ("trellis", "suh", "svh")
    }
    stack = Exl3Stack.of([[Exl3Matrix(*(part.cuda() for part in parts.values()), name.split(".")[0])]])
    inner = poisoned(stack.inputs, stack.widest, dtype=torch.float16)
    DECODER.decode(stack, 0, inner)
    expected = json.loads((DATA / "exl3_inner_sha256.json").read_text())[name]
    assert hashlib.sha256(inner.cpu().numpy().tobytes()).hexdigest() == expected


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_random_tiles_decode_to_the_specified_bits(form):
    stack = Exl3Stack.of([[matrix_of(form, 384, 640, seed=1)]])
    inner = poisoned(384, 640, dtype=torch.float16)
    DECODER.decode(stack, 0, inner)
    expected = decode_inner(stack.trellises[0].cpu(), form.codebook)
    assert torch.equal(inner.cpu().view(torch.int16), expected.view(torch.int16))


SHAPES = [
    *itertools.product(DECODED, [(640, 384, 5)]),
    *itertools.product(SOME, [(128, 128, 1), (4096, 1024, 16)]),
]


@pytest.mark.parametrize(("form", "shape"), SHAPES, ids=str)
def test_rows_equal_the_exact_decode(form, shape):
    inputs, outputs, rows = shape
    matrix = matrix_of(form, inputs, outputs, seed=int(form.bits))
    x = torch.randn(rows, inputs) * torch.logspace(-3, 3, rows)[:, None]
    found, expected = run(ROWS, Exl3Stack.of([[matrix]]), x.cuda()), expected_of(x, matrix)
    for row in range(rows):
        assert relative_error(found[row], expected[row]) < EXACT


@pytest.mark.parametrize("form", [*SOME, None], ids=str)
@pytest.mark.parametrize("rows", range(1, 17))
def test_a_rows_bits_depend_on_that_row_alone(form, rows):
    """None: not quantized."""
    matrix = matrix_of(form, 1664, 512, seed=7) if form else plain_matrix(torch.randn(512, 1664).cuda())
    stack = Exl3Stack.of([[matrix]])
    x = torch.randn(16, 1664, generator=torch.Generator().manual_seed(rows)).cuda()
    together = run(ROWS, stack, x[16 - rows :].contiguous())
    for row in range(rows):
        at = 16 - rows + row
        assert torch.equal(run(ROWS, stack, x[at : at + 1].contiguous())[0], together[row])


def test_rows_of_zeros_give_zeros_and_tiny_rows_keep_their_digits():
    matrix = matrix_of(Form("mcg", 3), 256, 256, seed=5)
    x = torch.stack([torch.zeros(256), torch.full((256,), 1e-30), torch.randn(256) * 1e25])
    found, expected = run(ROWS, Exl3Stack.of([[matrix]]), x.cuda()).cpu(), expected_of(x, matrix)
    assert torch.equal(found[0], torch.zeros(256))
    assert relative_error(found[1], expected[1]) < EXACT
    assert relative_error(found[2], expected[2]) < EXACT


@pytest.mark.parametrize("rows", [1, 16, 200, LIBRARY_ROWS])
def test_matrices_that_are_not_quantized(rows):
    """Padded on both sides; weights of a tiny and of an ordinary size."""
    for size, dtype in ((1e-4, torch.float32), (0.02, torch.bfloat16)):
        weight, x = (size * torch.randn(300, 640)).to(dtype), torch.randn(rows, 640)
        stack = Exl3Stack.of([[plain_matrix(weight.cuda())]])
        if rows <= 16:
            y = run(ROWS, stack, x.cuda())
        else:
            (y,) = chunk_product(stack, x.half(), Blocks.dense(rows, DEVICE))
        assert (y[:, 300:] == 0).all()
        assert relative_error(y[:, :300], x @ weight.float().T) < 1e-3


def mixed_stack(biased=False):
    """Two groups of unlike widths, seven experts of four forms."""
    forms = [Form("mul1", 3), Form("mul1", 4), Form("mcg", 4), Form("mul1", 2.5)]
    groups = [
        [matrix_of(forms[m % 4], 256, width, 10 * width + m, biased) for m in range(7)]
        for width in (128, 384)
    ]
    return groups, Exl3Stack.of(groups)


@pytest.mark.parametrize("biased", [False, True])
def test_experts_of_many_forms_beside_each_other(biased):
    groups, stack = mixed_stack(biased)
    assert not stack.integer
    x = torch.randn(3, 256)

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32).cuda()

    pairs = [(0, 1), (2, 1), (1, 3), (0, 4), (0, 6), (1, 6), (2, 6)]
    padding = [0] * 5
    jobs = Jobs(
        ints(*(row for row, _ in pairs), *padding),
        ints(*(matrix for _, matrix in pairs), *padding),
        ints(len(pairs)),
        ints(0, 2, 3, 4, 7, *padding),
        ints(1, 3, 4, 6, *padding),
        ints(4),
    )
    for group in (0, 1):
        y = run(ROWS, stack, x.cuda(), jobs=jobs, group=group)
        for pair, (row, which) in enumerate(pairs):
            assert relative_error(y[pair], expected_of(x[row : row + 1], groups[group][which])[0]) < EXACT


@pytest.mark.parametrize("form", DECODED, ids=str)
@pytest.mark.parametrize("rows", [1, 63, 500])
def test_chunks_equal_the_exact_decode(form, rows):
    matrices = [matrix_of(form, 512, 384, 3), matrix_of(form, 512, 128, 9, biased=rows == 63)]
    stack = Exl3Stack.of([[matrix] for matrix in matrices])
    x = torch.randn(rows, 512).half()
    found = chunk_product(stack, x, Blocks.dense(rows, DEVICE))
    for y, matrix in zip(found, matrices, strict=True):
        assert relative_error(y, expected_of(x.float(), matrix)) < 1e-3  # rotated rows are fp16


def chunk_product(stack, x, blocks):
    pairs = blocks.pairs
    rotated = poisoned(stack.groups, pairs, stack.inputs, dtype=torch.float16)
    y = tuple(poisoned(pairs, n) for n in stack.outputs)
    CHUNK.rotate(x.cuda(), stack.suh, blocks, rotated)
    CHUNK.product(rotated, stack, blocks, y)
    return y


@pytest.mark.parametrize("biased", [False, True])
def test_a_long_chunk_takes_the_librarys_product(biased):
    rows, matrix = LIBRARY_ROWS + 76, matrix_of(Form("3inst", 5), 512, 384, 4, biased)
    x = torch.randn(rows, 512).half()
    stack = Exl3Stack.of([[matrix]])
    (y,) = chunk_product(stack, x, Blocks.dense(rows, DEVICE))
    assert relative_error(y, expected_of(x.float(), matrix)) < 1e-3


def test_a_chunks_rows_do_not_see_their_neighbours():
    stack, x = Exl3Stack.of([[matrix_of(Form("mcg", 3), 512, 256, 4)]]), torch.randn(200, 512).half()
    device = DEVICE
    (whole,) = chunk_product(stack, x, Blocks.dense(200, device))
    for first, end in ((0, 1), (3, 36), (130, 200)):
        (part,) = chunk_product(stack, x[first:end], Blocks.dense(end - first, device))
        assert torch.equal(part, whole[first:end])


def test_routed_rows_meet_experts_of_many_forms():
    groups, stack = mixed_stack()
    generator = torch.Generator().manual_seed(1)
    experts = torch.stack([torch.randperm(7, generator=generator)[:3] for _ in range(300)]).sort(1).values
    x = torch.randn(300, 256).half()
    blocks, row_pair = Blocks.routed(experts.cuda(), 7)
    found = chunk_product(stack, x, blocks)
    for group, y in enumerate(found):
        by_row = y.cpu()[row_pair.cpu().long()]
        for expert in range(7):
            row, choice = (experts == expert).nonzero(as_tuple=True)
            assert (
                relative_error(by_row[row, choice], expected_of(x.float(), groups[group][expert])[row]) < 1e-3
            )
