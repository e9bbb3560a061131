"""Sixteen fp32 lanes as a value inside numba kernels, and small blocks of them that stay in registers.

LLVM lowers a 16-lane operation to one AVX-512, two AVX2 or four NEON instructions, and each lane's result is
the same in all of them: multiply-adds are fused by name (``llvm.fma``) and nothing is ever reassociated. So
kernels written in lanes give the same bits whatever the vector width.

``offset`` arguments count elements from the start of a C-contiguous array, whatever its dimensions. numba has
neither half nor bfloat16 arrays on the CPU: their bits are kept as int16 and uint16, and only ``load`` and
``store`` give them a meaning.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import ConcreteTemplate, Signature, infer_global
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

LANES = 16

intrinsic: Any = numba_intrinsic  # inside kernels the first argument is absent, which typing cannot express

_F32 = ir.FloatType()
_I32 = ir.IntType(32)
_VEC = ir.VectorType(_F32, LANES)
_VEC_I32 = ir.VectorType(_I32, LANES)
_VEC_HALF = ir.VectorType(ir.HalfType(), LANES)


def _block_rows() -> int:
    """Rows of one register block: two tiles times the rows, plus operands, must fit the vector registers.

    Sets speed alone; no result depends on it.
    """
    features = binding.get_host_cpu_features()
    return 8 if features.get("avx512f") else 2


BLOCK_ROWS = _block_rows()


class LanesType(types.Type):
    """numba type of one vector of LANES fp32 values."""

    def __init__(self) -> None:
        super().__init__("Lanes")


class BlockType(types.Type):
    """numba type of ``count`` vectors; numba keeps them as one value, LLVM as so many registers."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"LanesBlock({count})")


lanes_type = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: Any) -> None:
        super().__init__(manager, frontend_type, _VEC)


@register_model(BlockType)
class _BlockModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: Any) -> None:
        super().__init__(manager, frontend_type, ir.ArrayType(_VEC, frontend_type.count))


def _constant(value: float) -> Any:
    return ir.Constant(_VEC, [value] * LANES)


def _splat(builder: Any, scalar: Any, vector: Any = _VEC) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_VEC_I32, [0] * LANES))


def _intrinsic_call(builder: Any, name: str, *args: Any) -> Any:
    function_type = ir.FunctionType(_VEC, [_VEC] * len(args))
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, args)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _intrinsic_call(builder, "fma", a, b, c)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _load(builder: Any, address: Any, element: Any) -> Any:
    """LANES consecutive elements, converted to fp32 (exactly)."""
    if element == types.float32:
        raw = builder.load(builder.bitcast(address, _VEC.as_pointer()))
        raw.align = 4
        return raw
    if element == types.int16:
        raw = builder.load(builder.bitcast(address, _VEC_HALF.as_pointer()))
        raw.align = 2
        return builder.fpext(raw, _VEC)
    integers = ir.VectorType(ir.IntType(element.bitwidth), LANES)
    raw = builder.load(builder.bitcast(address, integers.as_pointer()))
    raw.align = element.bitwidth // 8
    if element == types.uint16:
        wide = builder.zext(raw, _VEC_I32)
        return builder.bitcast(builder.shl(wide, ir.Constant(_VEC_I32, [16] * LANES)), _VEC)
    return builder.sitofp(builder.sext(raw, _VEC_I32), _VEC)


def _store(builder: Any, address: Any, vector: Any, element: Any) -> None:
    if element == types.int16:
        half = builder.fptrunc(vector, _VEC_HALF)
        builder.store(half, builder.bitcast(address, _VEC_HALF.as_pointer())).align = 2
    else:
        builder.store(vector, builder.bitcast(address, _VEC.as_pointer())).align = 4


@intrinsic
def load(_: Any, array: Any, offset: Any) -> Any:
    """Lanes from float32, int16 (half), uint16 (bfloat16) or int8 elements at ``offset``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args)
        return _load(builder, address, signature.args[0].dtype)

    return lanes_type(array, offset), codegen


@intrinsic
def load_nibbles(_: Any, array: Any, offset: Any) -> Any:
    """Two Lanes from LANES bytes: the low four bits of each, and the high four."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args)
        raw = builder.load(builder.bitcast(address, ir.VectorType(ir.IntType(8), LANES).as_pointer()))
        raw.align = 1
        wide = builder.zext(raw, _VEC_I32)
        low = builder.and_(wide, ir.Constant(_VEC_I32, [15] * LANES))
        high = builder.lshr(wide, ir.Constant(_VEC_I32, [4] * LANES))
        pair = [builder.sitofp(low, _VEC), builder.sitofp(high, _VEC)]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(lanes_type, 2)(array, offset), codegen


@intrinsic
def store(_: Any, array: Any, offset: Any, vector: Any) -> Any:
    """Write LANES elements, rounded to the array's type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        _store(builder, address, args[2], signature.args[0].dtype)
        return context.get_dummy_value()

    return types.void(array, offset, vector), codegen


@intrinsic(prefer_literal=True)
def load_columns(_: Any, array: Any, offset: Any, count: Any) -> Any:
    """A tuple of ``count`` (a compile-time constant) consecutive Lanes."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        element = signature.args[0].dtype
        vectors = [_load(builder, builder.gep(address, [_I32(v * LANES)]), element) for v in range(number)]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(lanes_type, number)(array, offset, count), codegen


@intrinsic
def put(_: Any, array: Any, offset: Any, scalar: Any) -> Any:
    """Write one fp32 value at a flat offset, rounded to the array's type (float32, or int16 for half)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], args[0], args[1])
        if signature.args[0].dtype == types.int16:
            half = builder.fptrunc(args[2], ir.HalfType())
            builder.store(half, builder.bitcast(address, ir.HalfType().as_pointer())).align = 2
        else:
            builder.store(args[2], address)
        return context.get_dummy_value()

    return types.void(array, offset, types.float32), codegen


@intrinsic
def splat(_: Any, scalar: Any) -> Any:
    """The same fp32 value in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return lanes_type(types.float32), codegen


@intrinsic
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fma(builder, *args)

    return lanes_type(a, b, c), codegen


def _operator(symbol: Callable[..., Any], instruction: str) -> None:
    @infer_global(symbol)
    class _Template(ConcreteTemplate):
        cases = (Signature(lanes_type, (lanes_type, lanes_type), None),)

    @lower_builtin(symbol, LanesType, LanesType)
    def _codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


@intrinsic
def where_less(_: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Per lane: ``then`` where a < b, else ``otherwise`` (so also where a or b is NaN)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return lanes_type(a, b, then, otherwise), codegen


@intrinsic
def keep_between(_: Any, vector: Any, first: Any, end: Any, otherwise: Any) -> Any:
    """Lanes with first ≤ lane number < end, the others from ``otherwise``. ``first`` may be negative."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = ir.Constant(_VEC_I32, list(range(LANES)))
        low = _splat(builder, builder.trunc(args[1], _I32), _VEC_I32)
        high = _splat(builder, builder.trunc(args[2], _I32), _VEC_I32)
        inside = builder.and_(
            builder.icmp_signed(">=", numbers, low), builder.icmp_signed("<", numbers, high)
        )
        return builder.select(inside, args[0], args[3])

    return lanes_type(vector, types.int64, types.int64, otherwise), codegen


@intrinsic
def scale_by_power_of_two(_: Any, vector: Any, shifted: Any) -> Any:
    """vector · 2**n, where n sits in the low bits of ``shifted`` = 1.5 · 2**23 + n. Normal numbers only."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        exponent = builder.shl(builder.bitcast(args[1], _VEC_I32), ir.Constant(_VEC_I32, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(args[0], _VEC_I32), exponent), _VEC)

    return lanes_type(vector, shifted), codegen


def _reduction(combine: Callable[[Any, Any, Any], Any]) -> Any:
    @intrinsic
    def reduce(_: Any, vector: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value, undefined, width = args[0], ir.Constant(_VEC, ir.Undefined), LANES
            while width > 1:
                width //= 2
                order = [(lane + width) % LANES for lane in range(LANES)]
                other = builder.shuffle_vector(value, undefined, ir.Constant(_VEC_I32, order))
                value = combine(builder, value, other)
            return builder.extract_element(value, _I32(0))

        return types.float32(vector), codegen

    return reduce


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


tree_sum = _reduction(lambda builder, a, b: builder.fadd(a, b))
"""Sum of the lanes: halves are added to halves, in a fixed order."""
tree_max = _reduction(_larger)
"""Largest lane."""


@intrinsic(prefer_literal=True)
def zeros(_: Any, count: Any) -> Any:
    """A block of ``count`` (a compile-time constant) vectors of zeros."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(ir.ArrayType(_VEC, number), [_constant(0.0)] * number)

    return BlockType(number)(count), codegen


@intrinsic(prefer_literal=True)
def reload(_: Any, array: Any, count: Any) -> Any:
    """A block of ``count`` (a compile-time constant) vectors from the start of a float32 array."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    number = count.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = ir.Constant(ir.ArrayType(_VEC, number), ir.Undefined)
        for index in range(number):
            address = _address(context, builder, signature.args[0], args[0], _I32(index * LANES))
            block = builder.insert_value(block, _load(builder, address, types.float32), index)
        return block

    return BlockType(number)(array, count), codegen


@intrinsic
def spill(_: Any, block: Any, array: Any) -> Any:
    """Write a block's vectors one after the other to the start of a float32 array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for index in range(block.count):
            address = _address(context, builder, signature.args[1], args[1], _I32(index * LANES))
            _store(builder, address, builder.extract_value(args[0], index), types.float32)
        return context.get_dummy_value()

    return types.void(block, array), codegen


@intrinsic
def outer_fma(_: Any, block: Any, columns: Any, array: Any, offset: Any, stride: Any) -> Any:
    """block[r·V + v] += columns[v] · array[offset + r·stride], each one fused multiply-add.

    ``columns`` is a tuple of V Lanes; the block's rows r are count / V.
    """
    width = len(columns)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block_value, column_values, array_value, offset_value, stride_value = args
        address = _address(context, builder, signature.args[2], array_value, offset_value)
        vectors = [builder.extract_value(column_values, v) for v in range(width)]
        for row in range(block.count // width):
            element = builder.gep(address, [builder.mul(stride_value, ir.Constant(stride_value.type, row))])
            factor = _splat(builder, builder.load(element))
            for v in range(width):
                index = row * width + v
                previous = builder.extract_value(block_value, index)
                total = _fma(builder, vectors[v], factor, previous)
                block_value = builder.insert_value(block_value, total, index)
        return block_value

    return block(block, columns, array, offset, types.int64), codegen
