"""From stored tensors to tiled weights: decode, reorder rows, transpose into tiles.

Work goes through bands of rows, so that the scratch stays small beside the weight itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tandem.core.errors import ModelDamagedError
from tandem.loader.base import BlockTensor
from tandem.quant.base import LANES, TiledWeight, WeightFormat, common_format
from tandem.quant.blocks import GroupedRows, decode_rows

StoredTensor = torch.Tensor | BlockTensor

_BAND_TILES = 64
_TORCH_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_NO_ROW = -1


def _stored_dtype(tensor: StoredTensor) -> str:
    """The tensor's type as in headers."""
    if isinstance(tensor, BlockTensor):
        return tensor.dtype
    return _TORCH_NAMES.get(tensor.dtype, str(tensor.dtype))


def tile(parts: Mapping[str, StoredTensor], rows: Sequence[np.ndarray] | None = None) -> TiledWeight:
    """Fuse the parts (name -> [n_i, K]) into one tiled weight, one after the other.

    ``rows[i]`` lists which rows of part i to take, in which order (default: all, as they are).
    Raises ModelUnsupportedError naming a part of a type that is not served.
    """
    orders = [np.arange(part.shape[0]) for part in parts.values()] if rows is None else list(rows)
    source = np.concatenate([np.full(len(order), i) for i, order in enumerate(orders)])
    return _tile(parts, source, np.concatenate(orders), len(source))


def tile_gated(parts: Mapping[str, StoredTensor]) -> TiledWeight:
    """Gate and up (in this order, [N, K] each), tile by tile in turn: even tiles gate, odd tiles up."""
    features = next(iter(parts.values())).shape[0]
    padded = -(-features // LANES) * LANES
    order = np.arange(padded)
    order[features:] = _NO_ROW
    row = np.stack([order.reshape(-1, LANES)] * 2, 1).reshape(-1)
    source = np.tile(np.repeat([0, 1], LANES), padded // LANES)
    return _tile(parts, source, row, features)


def _tile(
    named: Mapping[str, StoredTensor], source: np.ndarray, row: np.ndarray, out_features: int
) -> TiledWeight:
    form = common_format({name: _stored_dtype(part) for name, part in named.items()})
    parts = list(named.values())
    features = parts[0].shape[-1]
    tiles = -(-len(row) // (2 * LANES)) * 2
    missing = tiles * LANES - len(row)
    source = np.concatenate([source, np.zeros(missing, source.dtype)])
    row = np.concatenate([row, np.full(missing, _NO_ROW, row.dtype)])
    weight = _empty(form, tiles, out_features, features)
    for first in range(0, tiles, _BAND_TILES):
        band = slice(first * LANES, min(first + _BAND_TILES, tiles) * LANES)
        _fill(weight, form, first, _band_rows(parts, source[band], row[band], form, features))
    if form.scale_bits == 16 and _any_infinite_half(weight.scale, weight.minimum):
        raise ModelDamagedError(
            f"{', '.join(named)}: the scale of a block is not a finite number",
            remedy="download the file again",
        )
    return weight


def _any_infinite_half(*arrays: np.ndarray) -> bool:
    """Exponents of all ones: infinite, or not a number."""
    return any(bool(((array & 0x7C00) == 0x7C00).any()) for array in arrays)


def _empty(form: WeightFormat, tiles: int, out_features: int, features: int) -> TiledWeight:
    groups = features // form.group if form.group else 0
    depth = features // 2 if form.bits == 4 else features
    scale_kind = np.int16 if form.scale_bits == 16 else np.float32
    kinds = {4: np.uint8, 8: np.int8, 32: np.float32}
    kind = kinds.get(form.bits) or (np.uint16 if form.bfloat else np.int16)
    return TiledWeight(
        np.empty((tiles, depth, LANES), kind),
        np.empty((tiles if groups else 0, groups, LANES), scale_kind),
        np.empty((tiles if groups else 0, groups, LANES), scale_kind),
        out_features,
        features,
    )


def _band_rows(
    parts: Sequence[StoredTensor], source: np.ndarray, row: np.ndarray, form: WeightFormat, features: int
) -> GroupedRows:
    """The band's rows in the common format; for floats, ``quants`` holds them (or their 16 bits)."""
    groups = features // form.group if form.group else 0
    kind = np.int8 if groups else {16: np.int16, 32: np.float32}[form.bits]
    values = np.zeros((len(row), features), kind)
    scale, minimum = np.zeros((2, len(row), groups), np.float32)
    for i, part in enumerate(parts):
        mine = np.flatnonzero((source == i) & (row != _NO_ROW))
        if not mine.size:
            continue
        if isinstance(part, BlockTensor):
            decoded = decode_rows(part.dtype, part.data.numpy()[row[mine]])
            if not groups:
                values[mine] = decoded.dequantize()
                continue
            decoded = decoded.regroup(groups)
            values[mine], scale[mine], minimum[mine] = decoded.quants, decoded.scale, decoded.minimum
        else:
            taken = part[torch.from_numpy(row[mine])]
            values[mine] = (taken.view(torch.int16) if form.bits == 16 else taken.float()).numpy()
    return GroupedRows(values, scale, minimum)


def _fill(weight: TiledWeight, form: WeightFormat, first: int, rows: GroupedRows) -> None:
    tiles = len(rows.quants) // LANES
    band = slice(first, first + tiles)
    values = rows.quants.reshape(tiles, LANES, -1).transpose(0, 2, 1)
    if form.bits == 4:
        packed = values.astype(np.uint8)
        weight.values[band] = packed[:, 0::2] | (packed[:, 1::2] << 4)
    else:
        weight.values[band] = values.view(weight.values.dtype)
    if form.group:
        for target, source in ((weight.scale, rows.scale), (weight.minimum, rows.minimum)):
            target[band] = _kept(source, form).reshape(tiles, LANES, -1).transpose(0, 2, 1)


def _kept(scale: np.ndarray, form: WeightFormat) -> np.ndarray:
    """Block types with half-float scales lose nothing by keeping them so (-8·d of Q4_0 is exact too)."""
    if form.scale_bits == 32:
        return scale
    with np.errstate(over="ignore"):
        return np.asarray(scale.astype(np.float16).view(np.int16))
