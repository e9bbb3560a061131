"""Every CUDA source and Triton kernel compiles for the oldest and the newest supported data-centre cards, and
asks for no more shared memory than they have. No card is needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tandem.kernels
from tandem.kernels.nvrtc import KernelSource, compile_cubin

ARCHITECTURES = {"sm_80": 163 * 1024, "sm_90a": 227 * 1024}
"""Shared memory a block can have, in bytes."""
FILES = sorted(Path(tandem.kernels.__file__).parent.rglob("*.cu"))
DEFINES: dict[str, tuple[dict[str, str | int], ...]] = {
    "exl3_rows": ({"BITS_A": 3, "BITS_B": 5, "ROWS": 16}, {"BITS_A": 8, "ROWS": 1}),
    "exl3_chunk": ({"BITS_A": 3, "BITS_B": 5},),
    "decoded_rows": ({"FORMS": "F(0,0,2) F(1,1,10) F(2,2,7)", "ROWS": 16}, {"FORMS": "F(0,3,32)"}),
    "decoded_chunk": ({"FORMS": "F(0,0,2) F(1,1,10) F(2,2,7)"},),
    "dense_rows": ({"ROWS": 16},),
    "routed_chunk": (
        {"FORMS": "F(0,0,2) F(1,1,10) F(2,2,7)", "MOST_HALVES": 10},
        {"FORMS": "F(0,3,32)", "MOST_HALVES": 32, "STAGES": 4},
    ),
    "mla_rows": ({"ROWS": 16, "Q8": 0}, {"ROWS": 1, "Q8": 1}),
    "mla_chunk": ({"Q8": 0}, {"Q8": 1}),
}
"""Macros besides the sources' own defaults, by file."""
HOPPER_ONLY = {"routed_chunk", "mla_chunk"}
"""With instructions that only sm_90a has."""
CASES = [(file, defines) for file in FILES for defines in DEFINES.get(file.stem, ({},))]


@pytest.fixture
def nvrtc():
    pytest.importorskip(
        "cuda.core", reason="the GPU packages are not installed: pip install 'tandem-serve[gpu]'"
    )


def test_the_table_names_files():
    assert set(DEFINES) | HOPPER_ONLY <= {file.stem for file in FILES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("file", "defines"), CASES, ids=[f"{file.stem}-{i}" for i, (file, _) in enumerate(CASES)]
)
def test_sources(nvrtc, file, defines, architecture):
    if file.stem in HOPPER_ONLY and architecture != "sm_90a":
        pytest.skip("another kernel serves this card")
    assert compile_cubin(KernelSource(file).with_defines(**defines), architecture, None)[:4] == b"\x7fELF"


def test_the_second_time_comes_from_the_cache(nvrtc, tmp_path):
    source = KernelSource(next(file for file in FILES if file.stem == "dense_rows"))
    code = compile_cubin(source, "sm_80", tmp_path)
    (kept,) = (tmp_path / "cubin").iterdir()
    kept.write_bytes(code[::-1])
    assert compile_cubin(source, "sm_80", tmp_path) == code[::-1]
    assert compile_cubin(source.with_defines(ROWS=2), "sm_80", tmp_path) != code[::-1]


def compiled(function, dtypes, constants, architecture, **options):
    triton = pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [name for name in function.arg_names if name not in constants]
    signature = dict(zip(names, dtypes, strict=True)) | dict.fromkeys(constants, "constexpr")
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_").rstrip("a")), 32)
    return triton.compile(ASTSource(function, signature, constants), target=target, options=options)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("eight_bit", [False, True])
@pytest.mark.parametrize("heads", [2, 16, 64])
def test_latent_attention(architecture, eight_bit, heads):
    """All heads of a chunk's row side by side, or sixteen of a step's; two are those of small models."""
    mla = pytest.importorskip("tandem.kernels.mla.triton", exc_type=ImportError)
    dtypes = ["*fp32", "*i8" if eight_bit else "*fp16", "*fp16", *["*i32"] * 4, *["*fp32"] * 3, "i32", "i32"]
    constants = {
        "HEADS": heads,
        "L": 512,
        "PAGE": 256,
        "POOL": 4,
        "COUNT": 512,
        "PART_TOKENS": 2080 if heads == 64 else 64,
        "BLOCK_T": 32,
        "BLOCK_H": heads,
        "Q8": eight_bit,
        "TWO_HALVES": heads != 64,
    }
    made = compiled(mla._attend, dtypes, constants, architecture, num_warps=8, num_stages=2)
    assert made.asm["ptx"]
    assert made.metadata.shared <= ARCHITECTURES[architecture]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("heads", [4, 32])
def test_pool_scores(architecture, heads):
    indexer = pytest.importorskip("tandem.kernels.indexer.triton", exc_type=ImportError)
    dtypes = ["*fp32", "*fp32", "*fp16", *["*i32"] * 3, "*fp32", *["i32"] * 3, "fp32"]
    constants = {"HEADS": heads, "D": 128, "PAGE_POOLS": 64, "POOL": 4, "COUNT": 512, "BLOCK": 128}
    made = compiled(indexer._score, dtypes, constants, architecture, num_warps=4)
    assert made.asm["ptx"]
    assert made.metadata.shared <= ARCHITECTURES[architecture]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("heads", [4, 32])
def test_pool_scores_of_a_chunk(architecture, heads):
    indexer = pytest.importorskip("tandem.kernels.indexer.chunk", exc_type=ImportError)
    dtypes = ["*fp16", "*fp32", "*fp16", *["*i32"] * 2, "*fp32", *["i32"] * 3, "fp32"]
    constants = {"HEADS": heads, "D": 128, "PAGE_POOLS": 64, "POOL": 4, "COUNT": 512, "BLOCK": 128, "ROWS": 4}
    made = compiled(indexer._score_chunk, dtypes, constants, architecture, num_warps=8)
    assert made.asm["ptx"]
    assert made.metadata.shared <= ARCHITECTURES[architecture]
