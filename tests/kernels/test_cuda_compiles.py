"""Every CUDA source compiles for the oldest and the newest supported data-centre cards; no card is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="the GPU packages are not installed: pip install 'tandem-serve[gpu]'")

from tandem.kernels.exl3 import chunk as exl3_chunk
from tandem.kernels.exl3 import cuda as exl3
from tandem.kernels.exl3 import decoded
from tandem.kernels.hyper_connection import cuda as hyper_connection
from tandem.kernels.indexer import cuda as indexer
from tandem.kernels.kda import cuda as kda
from tandem.kernels.linear import cuda as linear
from tandem.kernels.moe import cuda as moe
from tandem.kernels.nvrtc import compile_cubin

SOURCES = {
    "exl3 rows": exl3.SOURCE.with_defines(BITS_A=3, BITS_B=5, ROWS=16, TILES=8, WARPS=4),
    "exl3 chunk": exl3_chunk.SOURCE.with_defines(BITS_A=3, BITS_B=5),
    "decoded rows": decoded.ROWS_SOURCE.with_defines(FORMS="F(0,0,2) F(1,1,10) F(2,2,7)", ROWS=16),
    "decoded chunk": decoded.CHUNK_SOURCE.with_defines(FORMS="F(0,0,2) F(1,1,10) F(2,2,7)"),
    "sites": hyper_connection.SOURCE,
    "top pools": indexer.SOURCE,
    "kda rows": kda.SOURCE,
    "kda chunk": kda.CHUNK_SOURCE,
    "dense rows": linear.SOURCE.with_defines(ROWS=16),
    "route": moe.SOURCE,
}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", SOURCES)
def test_compiles(name, architecture, tmp_path):
    code = compile_cubin(SOURCES[name], architecture, tmp_path)
    assert code[:4] == b"\x7fELF"
    assert compile_cubin(SOURCES[name], architecture, tmp_path) == code  # the second time from the cache


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("eight_bit", [0, 1])
def test_latent_attention_compiles(architecture, eight_bit):
    pytest.importorskip("triton", reason="triton comes with torch's CUDA builds")
    from tandem.kernels.mla import cuda as mla

    assert compile_cubin(mla.SOURCE.with_defines(ROWS=16, Q8=eight_bit), architecture, None)
