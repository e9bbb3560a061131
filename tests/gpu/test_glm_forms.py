"""GLM on a card from a checkpoint of every odd kind at once: codebooks and rates mixed among the experts of a
layer, half rates, packed signs, biases, sizes that are padded, matrices that are not quantized.
"""

from __future__ import annotations

import dataclasses
import re
import zlib

import pytest
import torch
from tests.gpu.cards import CUBINS, NEEDS_CARD
from tests.gpu.glm_rig import OnCard, reference
from tests.gpu.test_glm_rows import tokens_of

from tandem.loader.base import TensorHeader
from tandem.models.glm5_next.random_checkpoint import RandomCheckpoint
from tandem.models.glm5_next.rehearsal_spec import SMALL, SMALL_BITS

pytestmark = NEEDS_CARD
PADDED = dataclasses.replace(SMALL, num_experts=4, expert_intermediate_size=256)
SPEC = dataclasses.replace(PADDED, expert_intermediate_size=192, intermediate_size=450, vocab_size=500)
"""Every expert is chosen, so that no tie of the router flips. Read from a checkpoint of PADDED's sizes."""
EXPERTS = ((3.0, "mul1"), (2.5, "mul1"), (4.0, "mcg"), (5.0, "3inst"))
"""By turns; all that is not an expert is MCG of four bits, or not quantized."""


def form_of(base: str) -> tuple[float, str]:
    expert = re.search(r"experts\.(\d+)", base)
    return EXPERTS[int(expert[1]) % 4 if expert else 2]


def is_plain(base: str) -> bool:
    """Attention of every other layer."""
    layer = re.search(r"layers\.(\d+)\.self_attn", base)
    return layer is not None and int(layer[1]) % 2 == 1


class OddCheckpoint:
    """Random weights whose matrices are coded by turns in every way."""

    def __init__(self) -> None:
        self._plain = RandomCheckpoint(PADDED, SMALL_BITS, torch.device("cpu"))
        self._headers: dict[str, TensorHeader] = {}
        for name in self._plain.names():
            base, _, part = name.rpartition(".")
            header, turn = self._plain.header(name), zlib.crc32(base.encode())
            bits, codebook = form_of(base)
            packs, biased = turn % 5 == 0, turn % 4 == 0
            if is_plain(base) and f"{base}.trellis" in self._plain.names():
                if part == "trellis":
                    self._add(f"{base}.weight", "BF16", (16 * header.shape[1], 16 * header.shape[0]))
            elif part == "trellis":
                self._add(name, "I16", (*header.shape[:2], int(16 * bits)))
            elif part in ("suh", "svh") and packs:
                self._add(f"{base}.{part[:2]}", "I16", (header.shape[0] // 16,))
            elif part == "mul1":
                if codebook != "3inst":
                    self._add(f"{base}.{codebook}", "I32", ())
            else:
                self._headers[name] = header
            if part == "svh" and biased and f"{base}.trellis" in self._headers:
                self._add(f"{base}.bias", "F16", header.shape)

    def _add(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._headers[name] = TensorHeader(name, dtype, shape, 0)

    def names(self) -> list[str]:
        return list(self._headers)

    def header(self, name: str) -> TensorHeader:
        return self._headers[name]

    def read(self, name: str) -> torch.Tensor:
        header, part = self._headers[name], name.rpartition(".")[2]
        if part in ("trellis", "su", "sv", "bias") or header.dtype == "BF16":
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if header.dtype == "BF16":
                noise = torch.randn(header.shape, generator=generator)
                return (noise * header.shape[1] ** -0.5).bfloat16()
            if part == "bias":
                return (0.1 * torch.randn(header.shape, generator=generator)).half()
            return torch.randint(-32768, 32768, header.shape, generator=generator, dtype=torch.int16)
        tensor = self._plain.read(name)
        # Packed signs scale by 1, which makes larger values than the random scales do.
        return tensor * 0.1 if part == "svh" else tensor


def errors(found, expected):
    return (found - expected).norm(dim=1) / expected.norm(dim=1)


@pytest.fixture(scope="module")
def source():
    return OddCheckpoint()


def test_rows_equal_the_reference_path(source):
    card, cpu = OnCard(CUBINS, spec=SPEC, source=source), reference("fp16", SPEC, source)
    tokens, found, first = [token % 500 for token in tokens_of(1, 64)], [], 0
    for count in (1, 2, 5, 16, 16, 16, 8):
        step = [(2, first, tokens[first : first + count])]
        found.append(errors(card.step(step), cpu.step(step)))
        first += count
    error = torch.cat(found)
    print(f"rows: median {float(error.median()):.1e}, largest {float(error.max()):.1e}")
    assert error.max() < 1e-2


def test_a_prompt_equals_its_rows(source):
    rows, chunks = (OnCard(CUBINS, spec=SPEC, source=source) for _ in range(2))
    tokens = [token % 500 for token in tokens_of(2, 120)]
    expected = torch.cat([rows.step([(1, i, tokens[i : i + 10])]) for i in range(0, 120, 10)])
    error = errors(chunks.prefill(1, tokens, 64), expected)
    print(f"prompt: median {float(error.median()):.1e}, largest {float(error.max()):.1e}")
    assert error.isfinite().all()
    assert error.median() < 2e-2


def test_a_rows_bits_do_not_depend_on_the_step(source):
    single, many = (OnCard(CUBINS, spec=SPEC, source=source) for _ in range(2))
    tokens = [token % 500 for token in tokens_of(3, 48)]
    expected = torch.cat([single.step([(1, i, tokens[i : i + 1])]) for i in range(48)])
    found = torch.cat([many.step([(1, i, tokens[i : i + 16])]) for i in range(0, 48, 16)])
    assert torch.equal(found, expected)
