"""Which tensors make an EXL3 matrix, and whether they fit together. Reads headers only; no torch.

A matrix of k inputs and n outputs (both padded with zeros to multiples of 128) is stored as::

    NAME.trellis   int16 [k/16, n/16, 16·K]   the codes; K comes from this width alone, never from the config
    NAME.suh       fp16  [k]                  scales of the inputs, before their rotation  (old files: su)
    NAME.svh       fp16  [n]                  scales of the outputs, after their rotation  (old files: sv)
    NAME.mcg | NAME.mul1   int32 scalar       which codebook, by its presence; neither means 3INST
    NAME.bias      fp16  [n]                  optional

Old files pack bare signs instead of scales: su int16 [k/16], sv int16 [n/16], bit i of a word for value i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.core.errors import ModelDamagedError, ModelUnsupportedError
from tandem.loader.base import TensorHeader

PADDING = 128
_CODEBOOK_MARKERS = ("mcg", "mul1")
_HALF_RATES = (1.5, 2.5, 3.5)


@dataclass(frozen=True, slots=True)
class Exl3Format:
    """One quantized matrix, checked but not read."""

    name: str
    in_features: int
    """As the model multiplies it; the stored matrix may be padded."""
    out_features: int
    padded_in: int
    padded_out: int
    bits: float
    """K: 1..8, or 1.5, 2.5, 3.5."""
    codebook: str
    """3inst, mcg or mul1."""
    packed_signs: bool
    has_bias: bool

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Every tensor of the checkpoint that belongs to this matrix."""
        parts = ["trellis", *(("su", "sv") if self.packed_signs else ("suh", "svh"))]
        if self.codebook != "3inst":
            parts.append(self.codebook)
        if self.has_bias:
            parts.append("bias")
        return tuple(f"{self.name}.{part}" for part in parts)

    @property
    def resident_bytes(self) -> int:
        """What the matrix takes in memory: the codes as stored, scales and bias as fp16."""
        codes = int(self.padded_in * self.padded_out * self.bits) // 8
        return codes + 2 * (self.padded_in + self.padded_out * (2 if self.has_bias else 1))


def is_exl3(name: str, entries: Mapping[str, TensorHeader]) -> bool:
    """Whether the matrix ``name`` is stored as EXL3."""
    return f"{name}.trellis" in entries


def read_format(
    name: str, entries: Mapping[str, TensorHeader], in_features: int, out_features: int
) -> Exl3Format:
    """Describe the matrix ``name``, which the model needs as ``in_features`` → ``out_features``.

    Raises ModelDamagedError (a tensor is missing or has the wrong shape or type) or ModelUnsupportedError
    (a bit rate the format does not know), naming the tensor.
    """
    trellis = _require(entries, f"{name}.trellis", "I16")
    padded_in, padded_out = (-(-size // PADDING) * PADDING for size in (in_features, out_features))
    if len(trellis.shape) != 3 or trellis.shape[:2] != (padded_in // 16, padded_out // 16):
        raise ModelDamagedError(
            f"{trellis.name} must have shape [{padded_in // 16}, {padded_out // 16}, 16·K]"
            f" for {in_features} inputs and {out_features} outputs",
            found=f"{list(trellis.shape)}",
            remedy="config.json and weights must come from one checkpoint",
        )
    markers = [marker for marker in _CODEBOOK_MARKERS if f"{name}.{marker}" in entries]
    if len(markers) > 1:
        raise ModelDamagedError(f"{name} names two codebooks", found=" and ".join(markers))
    codebook = markers[0] if markers else "3inst"
    packed_signs = f"{name}.suh" not in entries and f"{name}.su" in entries
    for scale, size in (("su", padded_in), ("sv", padded_out)):
        if packed_signs:
            _require(entries, f"{name}.{scale}", "I16", (size // 16,))
        else:
            _require(entries, f"{name}.{scale}h", "F16", (size,))
    has_bias = f"{name}.bias" in entries
    if has_bias:
        _require(entries, f"{name}.bias", None, (padded_out,))
    return Exl3Format(
        name=name,
        in_features=in_features,
        out_features=out_features,
        padded_in=padded_in,
        padded_out=padded_out,
        bits=_bits(trellis, codebook),
        codebook=codebook,
        packed_signs=packed_signs,
        has_bias=has_bias,
    )


def _bits(trellis: TensorHeader, codebook: str) -> float:
    bits = trellis.shape[2] / 16
    if bits.is_integer() and 1 <= bits <= 8:
        return bits
    if bits in _HALF_RATES:
        if codebook == "mul1":
            return bits
        raise ModelUnsupportedError(
            f"{trellis.name} has {bits} bits a weight, which only the mul1 codebook knows", found=codebook
        )
    raise ModelUnsupportedError(
        f"{trellis.name} must have 1 to 8 bits a weight, or 1.5, 2.5, 3.5",
        found=f"{bits:g} (width {trellis.shape[2]})",
    )


def _require(
    entries: Mapping[str, TensorHeader],
    name: str,
    dtype: str | None,
    shape: tuple[int, ...] | None = None,
) -> TensorHeader:
    entry = entries.get(name)
    if entry is None:
        raise ModelDamagedError(f"The checkpoint lacks tensor {name}", remedy="download the checkpoint again")
    if dtype is not None and entry.dtype != dtype:
        raise ModelDamagedError(f"{name} must be {dtype}", found=entry.dtype)
    if shape is not None and entry.shape != shape:
        raise ModelDamagedError(f"{name} must have shape {list(shape)}", found=f"{list(entry.shape)}")
    return entry
