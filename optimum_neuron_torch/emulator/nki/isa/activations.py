"""The Scalar Engine's activation functions, with what comes before and after them; the Vector Engine's exponential."""

from typing import Any

import numpy as np

from ..core import warn_once
from ..errors import NkiError
from ..instruction import Step, instruction
from ..operators import OPERATORS, Operator
from ..tensor import NkiTensor
from .accumulators import accumulate, check_reduction, spoil_accumulators, write_accumulators
from .constants import reduce_cmd as commands
from .operands import (
    SCALAR_ENGINE_PAIRS,
    apply_number,
    check_per_partition,
    float32_operand,
    generation,
    has_dtype,
    needs_generation,
    on_chip,
    operator_of,
    per_partition,
    reduction_operator,
    same_elements,
    tensors,
)


_FLOATS = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32")
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16")


@instruction
def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = commands.idle,
) -> Step:
    """`dst = op(data * scale + bias)`, and its sum along the free dimensions in the Scalar Engine's accumulators."""
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
    """`activation` that starts a sum of its own."""
    return _activation(dst, op, data, bias, scale, reduce_op, reduce_res, commands.reset_reduce)


def _activation(
    dst: NkiTensor, op: Any, data: NkiTensor, bias: Any, scale: Any, reduce_op: Any, reduce_res: Any, reduce_cmd: Any
) -> Step:
    on_chip(dst, data)
    same_elements(dst, data)
    partitions = data.shape[0]
    op = _function(op)
    if op.arity != 1:
        raise NkiError(f"op={op} has a parameter, which nisa.activate2 takes as relu_param, and activation has not")
    _check_scale_and_bias(op, scale, bias, partitions)
    check_reduction(reduce_cmd, "idle reset reduce reset_reduce", reduce_res, partitions)
    reduction = _reduction(reduce_op, reduce_cmd, "add")

    def compute() -> None:
        inputs = data.read_float32()
        if isinstance(scale, NkiTensor) or scale != 1:
            inputs = inputs * per_partition(scale, partitions, "scale")
        if bias is not None:
            inputs = inputs + per_partition(bias, partitions, "bias")
        values = _activated(op, inputs)
        dst.write(values)
        accumulate("scalar", reduce_cmd, reduction, values)
        write_accumulators("scalar", reduce_res)

    return Step("scalar", (dst, *tensors(reduce_res)), (data, *tensors(bias, scale)), compute)


def _function(op: Any) -> Operator:
    op = operator_of(op)
    if not op.is_activation:
        names = [name for name, each in OPERATORS.items() if each.is_activation]
        raise NkiError(f"op={op} is no activation function: the Scalar Engine has nl.{', nl.'.join(names)}")
    return op


def _check_scale_and_bias(op: Operator, scale: Any, bias: Any, partitions: int) -> None:
    float32_operand(scale, partitions, "scale")
    if bias is None:
        return
    check_per_partition(bias, partitions, "bias")
    if isinstance(bias, NkiTensor):
        if bias.dtype == "tfloat32":
            raise NkiError(f"bias has any dtype but tfloat32, and is {bias.describe()}")
    else:
        needs_generation(3, f"a bias that is a number ({bias!r}) and no tensor of shape ({partitions}, 1)")
    if op.name == "reciprocal" and generation() == 2:
        raise NkiError("op=nl.reciprocal takes no bias on NeuronCore-v2: add it first, with nisa.tensor_scalar")


def _reduction(reduce_op: Any, command: Any, *allowed: str) -> Operator:
    if command is commands.idle or command is commands.reset:
        return OPERATORS["add"] if reduce_op is None else reduction_operator(reduce_op, "reduce_op", *allowed)
    if reduce_op is None:
        raise NkiError(f"reduce_cmd.{command.name} reduces, and there is no reduce_op: name it, e.g. nl.add")
    return reduction_operator(reduce_op, "reduce_op", *allowed)


def _activated(op: Operator, inputs: np.ndarray) -> np.ndarray:
    outside = op.outside_valid_range(inputs)
    if outside is not None:
        low, high = op.valid_range
        warn_once(
            f"{op} of {float(inputs[outside][0]):g}: the Scalar Engine gives no valid results outside "
            f"{'+-' if op.name == 'reciprocal' else ''}[{low:g}, {high:g}]"
        )
    return op.activate(inputs)


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
    reduce_cmd: Any = commands.idle,
) -> Step:
    """`dst = op((data op0 imm0) op1 imm1)`, and its reduction in the Scalar Engine's accumulators."""
    needs_generation(4, "activate2")
    on_chip(dst, data)
    same_elements(dst, data)
    partitions = data.shape[0]
    op = _function(op)
    first, second = _stages(op0, op1, reverse0, reverse1)
    for value, stage, role in ((imm0, first, "imm0"), (imm1, second, "imm1")):
        if value is not None or stage.name != "bypass":
            check_per_partition(value, partitions, role)
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor) and imm0.dtype != imm1.dtype:
        raise NkiError(f"imm0 and imm1 have the same dtype, but are {imm0.describe()} and {imm1.describe()}")
    check_per_partition(relu_param, partitions, "relu_param")
    check_reduction(reduce_cmd, "idle reset reduce reset_reduce", reduce_res, partitions)
    reduction = _reduction(reduce_op, reduce_cmd, "add", "maximum", "minimum", "abs_max", "abs_min")

    def compute() -> None:
        inputs = apply_number(first, data.read_float32(), imm0, "imm0", reverse0)
        inputs = apply_number(second, inputs, imm1, "imm1", reverse1)
        if op.arity == 2:
            values = op.function(inputs, per_partition(relu_param, partitions, "relu_param"))
        else:
            values = _activated(op, inputs)
        dst.write(values)
        accumulate("scalar", reduce_cmd, reduction, values)
        write_accumulators("scalar", reduce_res)

    reads = (data, *tensors(imm0, imm1, relu_param))
    return Step("scalar", (dst, *tensors(reduce_res)), reads, compute)


def _stages(op0: Any, op1: Any, reverse0: bool, reverse1: bool) -> tuple[Operator, Operator]:
    bypass = OPERATORS["bypass"]
    first = bypass if op0 is None else operator_of(op0, "op0")
    second = bypass if op1 is None else operator_of(op1, "op1")
    if (first.name, second.name) not in SCALAR_ENGINE_PAIRS:
        pairs = ", ".join(f"(nl.{a}, nl.{b})" for a, b in sorted(SCALAR_ENGINE_PAIRS))
        raise NkiError(f"op0={first} with op1={second}: the Scalar Engine has {pairs}")
    for op, is_reversed, index in ((first, reverse0, "0"), (second, reverse1, "1")):
        if is_reversed and op is bypass:
            raise NkiError(f"reverse{index}=True without op{index}: there is nothing to reverse")
    return first, second


@instruction
def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = commands.idle,
    reduce_init: Any = 0.0,
) -> Step:
    """`dst = exp(src - max_value)`, and its sum along the free dimensions in the Vector Engine's accumulators."""
    needs_generation(4, "exponential")
    on_chip(dst, src)
    same_elements(dst, src)
    partitions = src.shape[0]
    has_dtype(dst, "dst", *_FLOATS, "tfloat32", *_INTEGERS)
    has_dtype(src, "src", *_FLOATS, *_INTEGERS, "uint32")
    float32_operand(max_value, partitions, "max_value")
    has_initial = isinstance(reduce_init, NkiTensor) or reduce_init != 0
    check_reduction(
        reduce_cmd,
        "idle reset_reduce reduce load_reduce",
        reduce_res,
        partitions,
        initial=reduce_init,
        has_initial=has_initial,
    )
    float32_operand(reduce_init, partitions, "reduce_init")
    if reduce_res is not None:
        has_dtype(reduce_res, "reduce_res", *_FLOATS, "tfloat32")
        if reduce_cmd is commands.idle:
            raise NkiError("reduce_res without a reduction: give reduce_cmd=nisa.reduce_cmd.reset_reduce")

    def compute() -> None:
        values = np.exp(src.read_float32() - per_partition(max_value, partitions, "max_value"))
        dst.write(values)
        if reduce_cmd is commands.idle:
            spoil_accumulators("vector")
        accumulate("vector", reduce_cmd, OPERATORS["add"], values, reduce_init)
        write_accumulators("vector", reduce_res)

    reads = (src, *tensors(max_value, reduce_init))
    return Step("vector", (dst, *tensors(reduce_res)), reads, compute)
