"""Reductions along the free dimensions or over the partitions."""

import math
import operator
from typing import Any

from ..dtypes import convert_bits, to_float32
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .accumulators import accumulate, check_reduction, write_accumulators
from .constants import reduce_cmd as commands
from .operands import (
    apply_number,
    check_stage,
    element_operator,
    float32_operand,
    in_buffer,
    is_integer,
    on_chip,
    reduction_operator,
    same_elements,
    takes_operand,
    tensors,
)


@instruction
def tensor_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, axis: Any, negate: bool = False, keepdims: bool = False
) -> Step:
    """Reduces the last free dimension of `data`, or the last several.

    `keepdims` changes nothing but the shape that `dst` is given by its maker: what counts is its number of elements.
    """
    on_chip(dst, data)
    op = reduction_operator(op, "op")
    if op.name == "average":
        raise NkiError("op=nl.average is for tensor_partition_reduce: reduce with nl.add, then divide")
    if negate and op.is_bitwise:
        raise NkiError(f"negate=True is for arithmetic operators, not for op={op}")
    kept = data.shape[1 : trailing_axes(axis, data)[0]]
    if dst.shape[0] != data.shape[0] or dst.free_size != math.prod(kept):
        raise NkiError(
            f"reducing axis {axis!r} of {data.describe()} gives {math.prod(kept)} elements in each of "
            f"{data.shape[0]} partitions, and dst is {dst.describe()}"
        )
    if op.is_bitwise:
        is_integer(dst, "dst")
        is_integer(data, "data")
    shape = (data.shape[0], math.prod(kept), -1)

    def compute() -> None:
        if op.is_bitwise:
            dst.write(convert_bits(op.reduce(data.read().reshape(shape)), dst.dtype))
            return
        reduced = op.reduce(to_float32(data.read(), data.dtype).reshape(shape))
        dst.write(-reduced if negate else reduced)

    return Step("vector", (dst,), (data,), compute)


def trailing_axes(axis: Any, data: NkiTensor) -> tuple[int, ...]:
    """The axes in ascending order, which must be the last dimensions and leave out the partition."""
    try:
        given = [operator.index(a) for a in axis] if isinstance(axis, (list, tuple)) else [operator.index(axis)]
    except TypeError:
        raise NkiError(
            f"axis is an integer or a list of integers, and {axis!r} is neither an integer nor several"
        ) from None
    axes = sorted(a + data.ndim if a < 0 else a for a in given)
    if 0 in axes:
        raise NkiError(
            f"axis {axis!r} of {data.describe()}: axis 0 is the partition, which is not reduced here: transpose "
            "first, or use nisa.nc_matmul with ones"
        )
    if not axes or axes != list(range(data.ndim - len(axes), data.ndim)):
        raise NkiError(
            f"axis {axis!r} of {data.describe()}: the reduced axes are the last ones, up to {data.ndim - 1}; permute "
            "the view so that they are"
        )
    return tuple(axes)


@instruction
def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor) -> Step:
    """Reduces over the partitions, on GpSimd: one partition is left."""
    on_chip(dst, data)
    in_buffer(dst, MemoryRegion.sbuf, role="dst (GpSimd cannot access PSUM)")
    in_buffer(data, MemoryRegion.sbuf, role="data (GpSimd cannot access PSUM)")
    op = reduction_operator(op, "op", "add", "average", "maximum", "bitwise_or", "bitwise_and")
    if dst.shape[0] != 1 or dst.free_size != data.free_size:
        raise NkiError(
            f"reducing the partitions of {data.describe()} gives one partition of {data.free_size} elements, and dst "
            f"is {dst.describe()}"
        )
    if op.is_bitwise:
        is_integer(dst, "dst")
        is_integer(data, "data")

    def compute() -> None:
        if op.is_bitwise:
            dst.write(convert_bits(op.reduce(data.read(), axis=0), dst.dtype))
        else:
            dst.write(op.reduce(data.read_float32(), axis=0))

    return Step("gpsimd", (dst,), (data,), compute)


@instruction
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
) -> Step:
    """`dst = data op0 operand0`, and its reduction along the free dimensions in the Vector Engine's accumulators."""
    on_chip(dst, data)
    same_elements(dst, data)
    partitions = data.shape[0]
    op = element_operator(op0, "vector", "op0")
    if reverse0:
        raise NkiError("reverse0=True is not supported by tensor_scalar_reduce: use nisa.tensor_scalar, then reduce")
    check_stage(op, operand0, partitions, "0")
    if takes_operand(op):
        float32_operand(operand0, partitions, "operand0")
    reduction = reduction_operator(reduce_op, "reduce_op", "add", "multiply", "maximum", "minimum")
    has_initial = reduce_init is not None
    check_reduction(
        reduce_cmd,
        "reset_reduce reduce load_reduce",
        reduce_res,
        partitions,
        initial=reduce_init,
        has_initial=has_initial,
    )
    if has_initial:
        float32_operand(reduce_init, partitions, "reduce_init")

    def compute() -> None:
        values = apply_number(op, data.read_float32(), operand0, "operand0")
        accumulate("vector", reduce_cmd, reduction, values, reduce_init)
        dst.write(values)
        write_accumulators("vector", reduce_res, is_negated=reduce_res_negate)

    return Step("vector", (dst, *tensors(reduce_res)), (data, *tensors(operand0, reduce_init)), compute)
