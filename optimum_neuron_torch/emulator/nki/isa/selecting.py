"""Selecting between two values, element by element."""

from typing import Any

import numpy as np

from ..dtypes import convert
from ..errors import NkiError
from ..instruction import Step, instruction
from ..operators import OPERATORS
from ..tensor import NkiTensor
from .accumulators import accumulate, check_reduction, spoil_accumulators, write_accumulators
from .constants import reduce_cmd as commands
from .operands import (
    check_per_partition,
    constant,
    float32_operand,
    has_dtype,
    needs_generation,
    not_both_in_psum,
    on_chip,
    operator_of,
    per_partition,
    reduction_operator,
    same_elements,
    tensors,
)


_MAXIMUM = OPERATORS["maximum"]
_LOWEST = float(np.finfo(np.float32).min)
_EXACT = 2**24  # float32 counts no further one by one


@instruction
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = _MAXIMUM,
    range_start: int = 0,
    on_false_value: Any = _LOWEST,
) -> Step:
    """`on_true_tile` where its column's number compares with two bounds per partition, else the lowest float32.

    The largest of each partition goes to the Vector Engine's accumulators.
    """
    needs_generation(3, "range_select")
    on_chip(dst, on_true_tile, bound0, bound1)
    same_elements(dst, on_true_tile)
    partitions, columns = on_true_tile.shape[0], on_true_tile.free_size
    if not on_true_tile.dtype.is_float:
        raise NkiError(f"on_true_tile has a floating point dtype, but is {on_true_tile.describe()}")
    comparisons = _comparison(comp_op0, "comp_op0"), _comparison(comp_op1, "comp_op1")
    for bound, role in ((bound0, "bound0"), (bound1, "bound1")):
        float32_operand(bound, partitions, role)
    constant(range_start, "range_start", is_integer=True)
    if range_start < 0 or range_start + columns > _EXACT:
        raise NkiError(
            f"columns {range_start} to {range_start + columns}: the last one is {_EXACT} at most, the first 0"
        )
    if np.float32(constant(on_false_value, "on_false_value")) != np.float32(_LOWEST):
        raise NkiError(f"on_false_value must be -3.4028235e+38, the lowest float32, but is {on_false_value!r}")
    reduction = reduction_operator(reduce_op, "reduce_op", "maximum")
    _check_maximum(reduce_cmd, reduce_res, partitions)

    def select() -> None:
        index = np.arange(range_start, range_start + columns, dtype=np.float32)
        chosen = comparisons[0](index, bound0.read_float32())
        chosen &= comparisons[1](index, bound1.read_float32())
        _finish(
            dst, np.where(chosen, on_true_tile.read_float32(), np.float32(_LOWEST)), reduction, reduce_cmd, reduce_res
        )

    return Step("vector", (dst, *tensors(reduce_res)), (on_true_tile, bound0, bound1), select)


_COMPARISONS = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


def _comparison(given: Any, role: str) -> np.ufunc:
    op = operator_of(given, role)
    if op.name not in _COMPARISONS:
        raise NkiError(f"{role}={op}: it is one of nl.{', nl.'.join(_COMPARISONS)}")
    return _COMPARISONS[op.name]


def _check_maximum(command: Any, result: Any, partitions: int) -> None:
    check_reduction(command, "idle reset reduce reset_reduce", result, partitions)
    if result is not None and command is commands.idle:
        raise NkiError("reduce_res without a reduction: give reduce_cmd=nisa.reduce_cmd.reset_reduce")


def _finish(dst: NkiTensor, values: np.ndarray, reduction: Any, command: Any, result: NkiTensor | None) -> None:
    if command is commands.idle:
        spoil_accumulators("vector")
    accumulate("vector", command, reduction, values)
    dst.write(values)
    write_accumulators("vector", result)


@instruction
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = _MAXIMUM,
    reverse_pred: bool = False,
) -> Step:
    """`on_true` where `predicate` is not zero, else a number or one number per partition; and the largest of each
    partition in the Vector Engine's accumulators."""
    on_chip(dst, predicate, on_true)
    same_elements(dst, predicate, on_true)
    not_both_in_psum(on_true, predicate, "on_true and predicate")
    partitions = dst.shape[0]
    has_dtype(predicate, "predicate", "int8", "uint8", "int16", "uint16", "bool")
    if on_true.dtype in ("tfloat32", "int32", "uint32"):
        raise NkiError(f"on_true has any dtype but tfloat32, int32 and uint32, and is {on_true.describe()}")
    check_per_partition(on_false, partitions, "on_false")
    reduction = reduction_operator(reduce_op, "reduce_op", "maximum")
    _check_maximum(reduce_cmd, reduce_res, partitions)
    if reduce_res is not None and not reduce_res.dtype.is_float:
        raise NkiError(f"reduce_res has a floating point dtype, but is {reduce_res.describe()}")

    def select() -> None:
        rejected = per_partition(on_false, partitions, "on_false")
        values = np.where(_truth(predicate, reverse_pred), on_true.read_float32(), rejected)
        _finish(dst, values, reduction, reduce_cmd, reduce_res)

    return Step("vector", (dst, *tensors(reduce_res)), (predicate, on_true, *tensors(on_false)), select)


def _truth(predicate: NkiTensor, is_reversed: bool) -> np.ndarray:
    values = predicate.read().reshape(predicate.shape[0], -1)
    return values == 0 if is_reversed else values != 0


@instruction
def tensor_copy_predicated(dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False) -> Step:
    """Copies a number, or the elements of a tensor, to where `predicate` is not zero; the rest of `dst` stays."""
    on_chip(dst, predicate, *tensors(src))
    same_elements(dst, predicate, *tensors(src))
    not_both_in_psum(src, predicate, "src and predicate")
    has_dtype(predicate, "predicate", "uint8", "uint16", "uint32", "bool")
    if not isinstance(src, NkiTensor):
        constant(src, "src, if it is no tensor,")
    elif src.dtype != dst.dtype:
        raise NkiError(f"src and dst have the same dtype, but are {src.describe()} and {dst.describe()}")

    def copy() -> None:
        chosen = _truth(predicate, reverse_pred)
        values = src.read() if isinstance(src, NkiTensor) else convert(np.float32(src), dst.dtype)
        dst.write_where(chosen.reshape(dst.shape), values if values.ndim == 0 else values.reshape(dst.shape))

    return Step("vector", (dst,), (predicate, *tensors(src)), copy)
