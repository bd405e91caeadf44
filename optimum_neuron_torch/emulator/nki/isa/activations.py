"""Activation functions: the Scalar engine, and the Vector engine's exponential."""

from typing import Any

import numpy as np

from ..core import current, warn_once
from ..errors import NkiError
from ..instruction import Step, instruction
from ..operators import OPERATORS, Operator
from ..tensor import NkiTensor
from .constants import reduce_cmd as reduce_cmds
from .operands import (
    accumulate,
    check_float32,
    check_per_partition,
    needs_generation,
    on_chip,
    operator,
    per_partition,
    same_elements,
    tensors,
)


@instruction
def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmds.idle,
) -> Step:
    """`dst = op(data * scale + bias)`, and a sum of it along the free axes."""
    return _activation(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


@instruction
def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
) -> Step:
    """`activation` that starts its sum anew and writes it to `reduce_res`."""
    return _activation(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmds.reset_reduce)


def _activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    reduce_cmd: Any,
) -> Step:
    on_chip(dst, data, *tensors(reduce_res))
    same_elements(dst, data)
    op = _function(op)
    partitions = data.shape[0]
    check_per_partition(scale, partitions, "scale")
    check_float32(scale, "scale")
    if bias is not None:
        check_per_partition(bias, partitions, "bias")
        if not isinstance(bias, NkiTensor) and current().run.chip.generation < 3:
            raise NkiError("bias is a tensor of one element per partition on NeuronCore-v2, not a number")
    reduction = _reduction(reduce_op, reduce_cmd, reduce_res, partitions)

    def compute() -> None:
        values = data.read_float32()
        if isinstance(scale, NkiTensor) or scale != 1.0:
            values = values * per_partition(scale, partitions, "scale")
        if bias is not None:
            values = values + per_partition(bias, partitions, "bias")
        _warn_outside(op, values)
        values = op.activate(values)
        dst.write(values)
        accumulate("scalar", reduce_cmd, reduction, values, reduce_res)

    return Step("scalar", (dst, *tensors(reduce_res)), (data, *tensors(bias, scale)), compute)


def _function(op: Any) -> Operator:
    found = operator(op, "op", activates=True)
    if not found.is_activation:
        raise NkiError(f"op={found!r} is no activation function of the Scalar engine")
    return found


def _reduction(reduce_op: Any, reduce_cmd: Any, reduce_res: NkiTensor | None, partitions: int) -> Operator:
    if not isinstance(reduce_cmd, reduce_cmds):
        raise NkiError(f"reduce_cmd is a member of nisa.reduce_cmd, but is {reduce_cmd!r}")
    if reduce_res is not None:
        check_per_partition(reduce_res, partitions, "reduce_res")
    if reduce_op is None:
        return OPERATORS["add"]
    found = operator(reduce_op, "reduce_op", reduces=True)
    if found.name != "add":
        raise NkiError(f"reduce_op={found!r}: the Scalar engine sums, with nl.add")
    return found


def _warn_outside(op: Operator, values: np.ndarray) -> None:
    outside = op.outside_valid_range(values)
    if outside is not None and outside.any():
        low, high = op.valid_range
        warn_once(
            f"{op!r} on the Scalar engine is good for inputs from {low:g} to {high:g}; {int(outside.sum())} are not"
        )


STAGES = {
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
}


@instruction
def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmds.idle,
) -> Step:
    """`dst = op((data op0 imm0) op1 imm1)`, and a reduction of it along the free axes."""
    needs_generation(4, "activate2")
    on_chip(dst, data, *tensors(reduce_res))
    same_elements(dst, data)
    op, first, second = _function(op), operator(op0, "op0"), operator(op1, "op1")
    if (first.name, second.name) not in STAGES:
        raise NkiError(f"op0={first!r} with op1={second!r}: there are {sorted(STAGES)}")
    partitions = data.shape[0]
    for value, role in ((imm0, "imm0"), (imm1, "imm1"), (relu_param, "relu_param")):
        check_per_partition(value, partitions, role)
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor) and imm0.dtype != imm1.dtype:
        raise NkiError(f"imm0 is {imm0.dtype} and imm1 {imm1.dtype}: tensors of one dtype")
    if (reverse0 and first.name == "bypass") or (reverse1 and second.name == "bypass"):
        raise NkiError("reverse0 and reverse1 need an operator to reverse, not nl.bypass")
    reduction = OPERATORS["add"] if reduce_op is None else operator(reduce_op, "reduce_op", reduces=True)
    if reduction.name not in ("add", "maximum", "minimum", "abs_max", "abs_min"):
        raise NkiError(f"reduce_op={reduction!r}: there are add, maximum, minimum, abs_max and abs_min")

    def compute() -> None:
        values = data.read_float32()
        for stage, operand, is_reversed in ((first, imm0, reverse0), (second, imm1, reverse1)):
            if stage.name != "bypass":
                other = per_partition(operand, partitions, "imm")
                values = stage.function(other, values) if is_reversed else stage.function(values, other)
        _warn_outside(op, values)
        if op.arity == 2:
            values = op.activate(values, per_partition(relu_param, partitions, "relu_param"))
        else:
            values = op.activate(values)
        dst.write(values)
        accumulate("scalar", reduce_cmd, reduction, values, reduce_res)

    reads = (data, *tensors(imm0, imm1, relu_param))
    return Step("scalar", (dst, *tensors(reduce_res)), reads, compute)


@instruction
def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmds.idle,
    reduce_init: Any = 0.0,
) -> Step:
    """`dst = exp(src - max_value)`, and a sum of it along the free axes, on the Vector engine."""
    needs_generation(4, "exponential")
    on_chip(dst, src, *tensors(reduce_res))
    same_elements(dst, src)
    partitions = src.shape[0]
    for value, role in ((max_value, "max_value"), (reduce_init, "reduce_init")):
        check_per_partition(value, partitions, role)
        check_float32(value, role)
    if reduce_cmd is not reduce_cmds.load_reduce and (isinstance(reduce_init, NkiTensor) or reduce_init != 0.0):
        raise NkiError("reduce_init is used by reduce_cmd.load_reduce alone")

    def compute() -> None:
        values = np.exp(src.read_float32() - per_partition(max_value, partitions, "max_value"))
        dst.write(values)
        accumulate("vector", reduce_cmd, OPERATORS["add"], values, reduce_res, reduce_init)

    reads = (src, *tensors(max_value, reduce_init))
    return Step("vector", (dst, *tensors(reduce_res)), reads, compute)
