"""GGML block types, decoded into integers with a scale and a minimum per group.

``weight = scale · quant + minimum``, which for every type here equals GGML's own dequantization bit for bit
when computed as one fused multiply-add: its products of scale and quant are either exact in fp32, or (Q6_K,
Q3_K) rounded once with nothing added.

Block layouts (bytes, in order; d, m and dmin are half floats)::

    Q4_0  32 weights:  d 2 | 16 nibble pairs                w = d · (q - 8)
    Q4_1  32:          d 2 | m 2 | 16 nibble pairs          w = d · q + m
    Q5_0  32:          d 2 | high bits 4 | 16 pairs         w = d · (q - 16)
    Q5_1  32:          d 2 | m 2 | high bits 4 | 16 pairs   w = d · q + m
    Q8_0  32:          d 2 | 32 int8                        w = d · q
    Q2_K  256:         16 scale/min nibbles | 64 | d 2 | dmin 2
    Q3_K  256:         high bits 32 | 64 | 12 six-bit scales | d 2
    Q4_K  256:         d 2 | dmin 2 | 12 six-bit scales and mins | 128
    Q5_K  256:         d 2 | dmin 2 | 12 six-bit scales and mins | high bits 32 | 128
    Q6_K  256:         low bits 128 | high bits 64 | 16 int8 scales | d 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """n rows of K weights: quants int8 [n, K], scale and minimum float32 [n, G]."""

    quants: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray

    def regroup(self, groups: int) -> GroupedRows:
        """The same weights with ``groups`` groups, a multiple of the present number."""
        times = groups // self.scale.shape[1]
        return GroupedRows(self.quants, self.scale.repeat(times, 1), self.minimum.repeat(times, 1))

    def dequantize(self) -> np.ndarray:
        """float32 [n, K]."""
        group = self.quants.shape[1] // self.scale.shape[1]
        scale, minimum = self.scale.repeat(group, 1), self.minimum.repeat(group, 1)
        return np.asarray(self.quants.astype(np.float32) * scale + minimum)


def decode_rows(dtype: str, data: np.ndarray) -> GroupedRows:
    """Decode rows of blocks: data uint8 [n, bytes of a row]. ``dtype`` is a key of the table above."""
    block_bytes, decode = _TYPES[dtype]
    rows = data.shape[0]
    quants, scale, minimum = decode(data.reshape(-1, block_bytes))
    return GroupedRows(
        np.ascontiguousarray(quants, dtype=np.int8).reshape(rows, -1),
        np.ascontiguousarray(scale, dtype=np.float32).reshape(rows, -1),
        np.ascontiguousarray(minimum, dtype=np.float32).reshape(rows, -1),
    )


_Decoded = tuple[np.ndarray, np.ndarray, np.ndarray]


def _half(blocks: np.ndarray, offset: int) -> np.ndarray:
    """The half float at a byte offset of every block, as float32 [blocks, 1]."""
    raw = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return np.asarray(raw.view("<f2").astype(np.float32))


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, n] bytes -> [blocks, 2n]: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], 1)


def _fifth_bits(raw: np.ndarray) -> np.ndarray:
    """[blocks, 4] bytes, bit i belongs to weight i -> [blocks, 32] of 0 or 16."""
    return np.unpackbits(raw, axis=1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> _Decoded:
    d = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), d, d * np.float32(-8)


def _q4_1(blocks: np.ndarray) -> _Decoded:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> _Decoded:
    quants = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.int8) - np.int8(16)
    d = _half(blocks, 0)
    return quants, d, np.zeros_like(d)


def _q5_1(blocks: np.ndarray) -> _Decoded:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> _Decoded:
    d = _half(blocks, 0)
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), d, np.zeros_like(d)


def _two_bits(packed: np.ndarray) -> np.ndarray:
    """[blocks, 64] bytes -> [blocks, 256]: per 32 bytes, the four bit pairs one after the other."""
    halves = packed.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (halves & 3).reshape(-1, 256)


def _q2_k(blocks: np.ndarray) -> _Decoded:
    scales, d, dmin = blocks[:, :16], _half(blocks, 80), _half(blocks, 82)
    return _two_bits(blocks[:, 16:80]), d * (scales & 15), -(dmin * (scales >> 4))


def _q3_k(blocks: np.ndarray) -> _Decoded:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], 1)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)
    high = ((packed[:, None, 8:12] >> shifts) & 3).reshape(-1, 16)
    scales = (low | (high << 4)).astype(np.int8) - np.int8(32)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    third_bits = ((blocks[:, None, :32] >> shifts) & 1).reshape(-1, 256)
    quants = (_two_bits(blocks[:, 32:96]) | (third_bits << 2)).astype(np.int8) - np.int8(4)
    d = _half(blocks, 108)
    return quants, d * scales, np.zeros((len(blocks), 16), np.float32)


def _six_bit_pairs(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[blocks, 12] bytes -> eight six-bit scales and eight six-bit minimums."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], 1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], 1)
    return scales, minimums


def _paired_nibbles(packed: np.ndarray) -> np.ndarray:
    """[blocks, 128] bytes -> [blocks, 256]: per 32 bytes, the low halves and then the high ones."""
    parts = packed.reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (parts & 15).reshape(-1, 256)


def _q4_k(blocks: np.ndarray) -> _Decoded:
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    return _paired_nibbles(blocks[:, 16:]), _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums)


def _q5_k(blocks: np.ndarray) -> _Decoded:
    scales, minimums = _six_bit_pairs(blocks[:, 4:16])
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth_bits = ((blocks[:, None, 16:48] >> shifts) & 1).reshape(-1, 256)
    quants = _paired_nibbles(blocks[:, 48:]) | (fifth_bits << 4)
    return quants, _half(blocks, 0) * scales, -(_half(blocks, 2) * minimums)


def _q6_k(blocks: np.ndarray) -> _Decoded:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    quants = (low & 15).reshape(-1, 256) | ((high & 3) << 4).reshape(-1, 256)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    d = _half(blocks, 208)
    return quants.astype(np.int8) - np.int8(32), d * scales, np.zeros((len(blocks), 16), np.float32)


_TYPES: dict[str, tuple[int, Callable[[np.ndarray], _Decoded]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
