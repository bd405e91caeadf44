"""Recurrences along the free dimension: each element from the one before."""

from typing import Any

import numpy as np

from ..errors import NkiError
from ..instruction import Step, instruction
from ..operators import Operator
from ..tensor import NkiTensor
from .accumulators import check_reduction, read_accumulators, set_accumulators
from .constants import reduce_cmd as commands
from .operands import (
    apply_number,
    check_per_partition,
    check_stage,
    element_operator,
    float32_operand,
    not_both_in_psum,
    on_chip,
    operator_of,
    per_partition,
    same_elements,
    takes_operand,
    tensors,
)


_SCANNED = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
_ACCUMULATING = ("add", "subtract", "multiply", "maximum", "minimum")


@instruction
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = commands.reset_reduce,
) -> Step:
    """`dst[i] = op1(op0(src[i], imm0), dst[i - 1])`, from where `reduce_cmd` says; the last one is kept."""
    on_chip(dst, src)
    same_elements(dst, src)
    for tensor, role in ((dst, "dst"), (src, "src")):
        if tensor.dtype in ("int32", "uint32"):
            raise NkiError(f"{role} cannot be a 32-bit integer, but is {tensor.describe()}: copy it to float32 first")
    partitions = src.shape[0]
    op = element_operator(op0, "vector", "op0")
    check_stage(op, imm0, partitions, "0")
    if takes_operand(op):
        float32_operand(imm0, partitions, "imm0")
    step = operator_of(op1, "op1")
    if step.name not in _ACCUMULATING:
        raise NkiError(f"op1={step}: it accumulates with nl.{', nl.'.join(_ACCUMULATING)}")
    check_reduction(
        reduce_cmd,
        "reset_reduce reduce load_reduce",
        None,
        partitions,
        initial=imm1,
        has_initial=imm1 is not None,
    )
    if imm1 is not None:
        float32_operand(imm1, partitions, "imm1")

    def compute() -> None:
        values = apply_number(op, src.read_float32(), imm0, "imm0")
        if reduce_cmd is commands.reset_reduce:
            start = np.float32(step.identity)
        elif reduce_cmd is commands.load_reduce:
            start = per_partition(imm1, partitions, "imm1")
        else:
            start = read_accumulators("vector", partitions)
        scanned = _accumulated(step, values, start)
        set_accumulators("vector", scanned[:, -1:], partitions)
        dst.write(scanned)

    return Step("vector", (dst,), (src, *tensors(imm0, imm1)), compute)


def _accumulated(step: Operator, values: np.ndarray, start: Any) -> np.ndarray:
    """`r[i] = values[i] step r[i - 1]` along the rows, from r[-1] = start."""
    steps = np.empty((values.shape[0], values.shape[1] + 1), np.float32)
    steps[:, :1] = start
    steps[:, 1:] = values
    if step.name == "subtract":
        # r[i] = x[i] - r[i - 1] is a sum once every other row changes its sign, which rounds nothing.
        steps[:, 1::2] *= -1
        scanned = np.add.accumulate(steps, axis=1)[:, 1:]
        scanned[:, ::2] *= -1
        return scanned
    return _SCANNED[step.name].accumulate(steps, axis=1)[:, 1:]


@instruction
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Step:
    """`dst[i] = (data0[i] op0 dst[i - 1]) op1 data1[i]`, from `initial`, in float32."""
    on_chip(dst, data0, data1)
    same_elements(dst, data0, data1)
    not_both_in_psum(data0, data1, "data0 and data1")
    first, second = element_operator(op0, "vector", "op0"), element_operator(op1, "vector", "op1")
    for op, role in ((first, "op0"), (second, "op1")):
        if op.arity != 2 or op.name == "bypass":
            raise NkiError(f"{role}={op}: the scan takes binary arithmetic operators")
    partitions = data0.shape[0]
    check_per_partition(initial, partitions, "initial")

    def compute() -> None:
        start = per_partition(initial, partitions, "initial")
        dst.write(_scanned(data0.read_float32(), data1.read_float32(), start, first, second, reverse0, reverse1))

    return Step("vector", (dst,), (data0, data1, *tensors(initial)), compute)


def _scanned(
    factors: np.ndarray,
    terms: np.ndarray,
    start: Any,
    first: Operator,
    second: Operator,
    is_first_reversed: bool,
    is_second_reversed: bool,
) -> np.ndarray:
    if first.name == "multiply" and second.name in ("add", "maximum", "minimum") and (factors == 1).all():
        return _accumulated(second, terms, start)
    # One column after the other, as each needs the one before; rows of the transposed arrays lie together.
    factors, terms = np.ascontiguousarray(factors.T), np.ascontiguousarray(terms.T)
    result = np.empty_like(terms)
    last = np.broadcast_to(np.asarray(start, np.float32).reshape(-1), terms.shape[1:])
    for i in range(len(terms)):
        inner = first.function(last, factors[i]) if is_first_reversed else first.function(factors[i], last)
        last = second.function(terms[i], inner) if is_second_reversed else second.function(inner, terms[i])
        result[i] = last
    return result.T
