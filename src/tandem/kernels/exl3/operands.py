"""What the EXL3 products on a CUDA card work on: matrices in stacks, pairs and jobs, rows and sums.

Alphabet: R rows, G groups, M matrices a group, P pairs (a row meeting a matrix), J jobs (a matrix with its
pairs), k inputs, n outputs, S splits of k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tandem.kernels.exl3.reference import ROTATION, TILE
from tandem.kernels.hadamard.reference import hadamard

PLAIN = "plain"
"""The codebook of matrices that are not quantized."""


@dataclass(frozen=True, slots=True, order=True)
class Form:
    """How a matrix's weights are coded."""

    codebook: str
    bits: float
    """A weight: 1..8 or 1.5, 2.5, 3.5; 16 if PLAIN."""

    @property
    def is_integer(self) -> bool:
        """Whether the integer products can add up its codebook's bytes."""
        return self.codebook == "mul1" and self.bits % 1 == 0


@dataclass(frozen=True, slots=True)
class Exl3Matrix:
    """One quantized matrix on the card."""

    trellis: torch.Tensor
    """int16 [k/16, n/16, 16·K]."""
    suh: torch.Tensor
    """fp16 [k]."""
    svh: torch.Tensor
    """fp16 [n]."""
    codebook: str = "mul1"
    bias: torch.Tensor | None = None
    """fp16 [n]; only where svh is not zero."""

    @property
    def form(self) -> Form:
        return Form(self.codebook, self.trellis.shape[2] / TILE)


@dataclass(frozen=True, slots=True)
class Exl3Stack:
    """G groups of M matrices that one launch multiplies: one shape a group, any forms."""

    trellises: tuple[torch.Tensor, ...]
    """Keeps the tiles alive."""
    addresses: torch.Tensor
    """int64 [G·M]."""
    bits: torch.Tensor
    """int32 [G·M], rounded down."""
    form_of: torch.Tensor
    """int32 [G·M]: which of ``forms``."""
    form_numbers: tuple[int, ...]
    """The same on the host."""
    forms: tuple[Form, ...]
    integer: bool
    """Multiplied as integers: MUL1 in whole bits of at most two rates, no bias. The others are decoded."""
    outputs_of: torch.Tensor
    """int32 [G·M]."""
    suh: torch.Tensor
    """fp16 [G, M, k]."""
    svh: tuple[torch.Tensor, ...]
    """fp16 [M, n] a group, contiguous one after the other."""
    offsets: tuple[torch.Tensor, ...]
    """Biases in the basis before the last rotation, fp32 [M, n] a group; none: ()."""
    offset_addresses: torch.Tensor
    """int64 [G·M]; 0: no bias."""
    rates: tuple[int, int]
    """Of an integer product; others have kernels of their own."""
    inputs: int
    outputs: tuple[int, ...]
    matrices: int

    @classmethod
    def of(cls, groups: Sequence[Sequence[Exl3Matrix]]) -> Exl3Stack:
        """``groups[g][m]``. Raises ValueError for shapes that differ in a group."""
        every = [matrix for group in groups for matrix in group]
        device = every[0].trellis.device
        outputs = tuple(group[0].svh.numel() for group in groups)
        if any(m.svh.numel() != outputs[g] for g, group in enumerate(groups) for m in group):
            raise ValueError(f"the matrices of a group must have one shape, not outputs {outputs}")
        forms = sorted({matrix.form for matrix in every})
        numbers = [forms.index(matrix.form) for matrix in every]
        biased = any(matrix.bias is not None for matrix in every)
        integer = all(form.is_integer for form in forms) and len(forms) <= 2 and not biased
        svh = torch.cat([matrix.svh for matrix in every])
        parts = torch.split(svh, [n * len(groups[0]) for n in outputs])
        offsets = tuple(torch.stack([_offset(m) for m in group]) for group in groups) if biased else ()
        every_offset = [row for offset in offsets for row in offset]
        return cls(
            trellises=tuple(matrix.trellis for matrix in every),
            addresses=torch.tensor([m.trellis.data_ptr() for m in every], dtype=torch.int64, device=device),
            bits=torch.tensor([int(m.form.bits) for m in every], dtype=torch.int32, device=device),
            form_of=torch.tensor(numbers, dtype=torch.int32, device=device),
            form_numbers=tuple(numbers),
            forms=tuple(forms),
            integer=integer,
            outputs_of=torch.tensor([m.svh.numel() for m in every], dtype=torch.int32, device=device),
            suh=torch.stack([m.suh for m in every]).view(len(groups), len(groups[0]), -1),
            svh=tuple(part.view(-1, n) for part, n in zip(parts, outputs, strict=True)),
            offsets=offsets,
            offset_addresses=torch.tensor(
                [row.data_ptr() for row in every_offset] or [0] * len(every), dtype=torch.int64, device=device
            ),
            rates=(int(forms[0].bits), int(forms[-1].bits)) if integer else (3, 3),
            inputs=every[0].suh.numel(),
            outputs=outputs,
            matrices=len(groups[0]),
        )

    @property
    def groups(self) -> int:
        return len(self.outputs)

    def group(self, number: int) -> Exl3Stack:
        """One group as a stack of its own, over the same memory."""
        if self.groups == 1:
            return self
        own = slice(number * self.matrices, (number + 1) * self.matrices)
        return replace(
            self,
            trellises=self.trellises[own],
            addresses=self.addresses[own],
            bits=self.bits[own],
            outputs_of=self.outputs_of[own],
            form_of=self.form_of[own],
            form_numbers=self.form_numbers[own],
            suh=self.suh[number : number + 1],
            svh=self.svh[number : number + 1],
            offsets=self.offsets[number : number + 1],
            offset_addresses=self.offset_addresses[own],
            outputs=self.outputs[number : number + 1],
        )

    def single(self, number: int) -> Exl3Stack:
        """Matrix ``number`` of every group as a stack of its own, over the same tiles."""
        own = [group * self.matrices + number for group in range(self.groups)]
        only = slice(number, number + 1)
        return replace(
            self,
            trellises=tuple(self.trellises[i] for i in own),
            addresses=self.addresses[own],
            bits=self.bits[own],
            outputs_of=self.outputs_of[own],
            form_of=self.form_of[own],
            form_numbers=tuple(self.form_numbers[i] for i in own),
            suh=self.suh[:, only].contiguous(),
            svh=tuple(part[only] for part in self.svh),
            offsets=tuple(part[only] for part in self.offsets),
            offset_addresses=self.offset_addresses[own],
            matrices=1,
        )

    @property
    def widest(self) -> int:
        return max(self.outputs)

    @property
    def nbytes(self) -> int:
        tables = (self.addresses, self.bits, self.form_of, self.outputs_of, self.offset_addresses)
        tensors = (*self.trellises, *tables, self.suh, *self.svh, *self.offsets)
        return sum(tensor.nbytes for tensor in tensors)


def _offset(matrix: Exl3Matrix) -> torch.Tensor:
    """What added to a product before its last rotation becomes the bias after it, fp32 [n]."""
    if matrix.bias is None:
        return torch.zeros_like(matrix.svh, dtype=torch.float32)
    scales = torch.where(matrix.svh == 0, 1.0, matrix.svh.float())
    return hadamard(matrix.bias.float() / scales, ROTATION)


@dataclass(frozen=True, slots=True)
class Jobs:
    """Which pairs meet which matrices; int32 on the card, so that routing never visits the host."""

    pair_row: torch.Tensor
    """[P]."""
    pair_matrix: torch.Tensor
    """[P], ascending."""
    pair_count: torch.Tensor
    """[1]."""
    job_start: torch.Tensor
    """[J + 1]."""
    job_matrix: torch.Tensor
    """[J]."""
    job_count: torch.Tensor
    """[1]."""
    fixed: bool = False
    """Written long before any kernel of the step."""

    @property
    def capacity(self) -> int:
        return self.pair_row.numel()

    @property
    def most_jobs(self) -> int:
        return self.job_matrix.numel()

    @classmethod
    def dense(cls, rows: int, device: torch.device) -> Jobs:
        """One job: every row meets matrix 0."""

        def ints(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            ints(list(range(rows))),
            ints([0] * rows),
            ints([rows]),
            ints([0, rows]),
            ints([0]),
            ints([1]),
            True,
        )

    @classmethod
    def empty(cls, pairs: int, jobs: int, device: torch.device) -> Jobs:
        """To be filled on the card."""

        def ints(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=torch.int32, device=device)

        return cls(ints(pairs), ints(pairs), ints(1), ints(jobs + 1), ints(jobs), ints(1))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rotated rows for a product."""

    rotated: torch.Tensor
    """fp32 [G·P, k]."""
    peaks: torch.Tensor
    """fp32 [G·P, k/128]: the largest magnitude of each rotated block."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a product leaves, to be rotated back by whoever reads them."""

    values: torch.Tensor
    """int32 [S, G·P, 2, pitch], or fp32 [S, G·P, pitch] of decoded weights."""
    sums: torch.Tensor | None
    """int32 [S, G·P]; none of decoded weights."""
    scale: torch.Tensor
    """fp32 [G·P]."""

    @property
    def splits(self) -> int:
        return self.values.shape[0]

    @property
    def pitch(self) -> int:
        return self.values.shape[-1]


@dataclass(frozen=True, slots=True)
class SiteErrand:
    """The coefficients of a site just entered (hyper_connection), for a block of the next launch to make."""

    partial: torch.Tensor
    """fp32 [R, blocks, 25]."""
    base: torch.Tensor
    scale: torch.Tensor
    coefficients: torch.Tensor
    """fp32 [R, 24]."""
    iterations: int
    eps: float
    norm_eps: float

    def arguments(self) -> tuple[torch.Tensor | float, ...]:
        """As the kernels take them."""
        rest = (self.partial.shape[1], self.iterations, self.eps, self.norm_eps)
        return (self.partial, self.base, self.scale, self.coefficients, *rest)


NO_ERRAND = (None, None, None, None, 0, 0, 0.0, 0.0)
"""In place of ``SiteErrand.arguments``."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What else the launch of a product does, as all of it waits for the same kernel."""

    errand: SiteErrand | None
    weight: torch.Tensor | None = None
    """A small fp16 matrix [N, K] to be multiplied, K a multiple of 8."""
    x: torch.Tensor | None = None
    """fp32 [R, K]."""
    y: torch.Tensor | None = None
    """fp32 [R, N]."""


@dataclass(frozen=True, slots=True)
class Gated:
    """A product of gate (group 0) and up (group 1) goes on to the input of ``down``: SwiGLU, rotated."""

    down: Exl3Stack
    out: Inputs
    """Other memory than the product's own input."""
    arrivals: torch.Tensor
    """int32 zeros [J · outputs/128]; zero again afterwards."""
    limit: float | None
    ready: torch.Tensor | None = None
    """int32 zeros [1 + J], for the product of ``down`` that follows and ``awaits`` it; then zero again."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that the products of a step use one after the other."""

    rotated: torch.Tensor
    """The inputs of a product and of the one after it."""
    peaks: torch.Tensor
    values: torch.Tensor
    sums: torch.Tensor
    scale: torch.Tensor
    arrivals: torch.Tensor
    ready: torch.Tensor

    @classmethod
    def empty(cls, row_values: int, sum_values: int, pairs: int, device: torch.device) -> Scratch:
        """row_values: most G·P·k; sum_values: most S·G·P·n; pairs: most S·G·P."""
        return cls(
            torch.empty(2 * row_values, device=device),
            torch.empty(2 * row_values // ROTATION, device=device),
            torch.empty(2 * sum_values, dtype=torch.int32, device=device),
            torch.empty(pairs, dtype=torch.int32, device=device),
            torch.empty(pairs, device=device),
            torch.zeros(sum_values // ROTATION + 1, dtype=torch.int32, device=device),
            torch.zeros(pairs + 1, dtype=torch.int32, device=device),
        )

    def inputs(self, pairs: int, inputs: int, *, second: bool = False) -> Inputs:
        """``second``: memory that the first does not touch."""
        begin = self.rotated.numel() // 2 if second else 0
        values, peaks = pairs * inputs, pairs * (inputs // ROTATION)
        return Inputs(
            self.rotated[begin : begin + values].view(pairs, inputs),
            self.peaks[begin // ROTATION :][:peaks].view(pairs, -1),
        )

    def outputs(self, splits: int, pairs: int, pitch: int, integer: bool = True) -> Sums:
        if not integer:
            floats = self.values.view(torch.float32)[: splits * pairs * pitch]
            return Sums(floats.view(splits, pairs, pitch), None, self.scale[:pairs])
        return Sums(
            self.values[: splits * pairs * 2 * pitch].view(splits, pairs, 2, pitch),
            self.sums[: splits * pairs].view(splits, pairs),
            self.scale[:pairs],
        )
