"""Element by element on the Vector, Scalar and GpSimd engines.

Operands are cast to float32, computed in it and cast to dst's dtype; bitwise operators see integers' bits, and 32-bit
integers are added and multiplied exactly. Source: the functions' pages in the Neuron documentation's API reference.
"""

from typing import Any

import numpy as np

from ..dtypes import convert_bits
from ..errors import NkiError
from ..instruction import Step, instruction
from ..operators import Operator
from ..registers import is_register
from ..tensor import NkiTensor
from .constants import engine as engines
from .constants import reduce_cmd as reduce_cmds
from .operands import (
    accumulate,
    check_float32,
    check_per_partition,
    choose_engine,
    integers_only,
    not_both_in_psum,
    on_chip,
    operator,
    per_partition,
    same_elements,
    tensors,
)


INTEGERS_OF_32_BITS = ("int32", "uint32")


@instruction
def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Any = engines.unknown) -> Step:
    """`dst = data1 op data2`."""
    on_chip(dst, data1, data2)
    same_elements(dst, data1, data2)
    not_both_in_psum(data1, data2, "data1 and data2")
    op = _binary(op, "op")
    operands = (dst, data1, data2)
    if op.is_bitwise:
        integers_only(*operands)
        name = choose_engine(engine, ("vector",), *operands)
        return Step(name, (dst,), (data1, data2), lambda: _store_bits(dst, op.function(_bits(data1), _bits(data2))))
    is_exact = all(tensor.dtype in INTEGERS_OF_32_BITS for tensor in operands)
    allowed = ("gpsimd", "vector") if is_exact or op.name == "power" else ("vector", "gpsimd")
    name = choose_engine(engine, allowed, *operands)
    if is_exact and name == "gpsimd":
        return Step(name, (dst,), (data1, data2), lambda: _store_bits(dst, _exactly(op, data1, data2)))

    def compute() -> None:
        dst.write(op.function(data1.read_float32(), data2.read_float32()))

    return Step(name, (dst,), (data1, data2), compute)


def _exactly(op: Operator, data1: NkiTensor, data2: NkiTensor) -> np.ndarray:
    """In 64 bits, of which the lower 32 are kept."""
    return np.asarray(op.function(_bits(data1).astype(np.int64), _bits(data2).astype(np.int64))).astype(np.int64)


@instruction
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any = None,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engines.unknown,
) -> Step:
    """`dst = (data op0 operand0) op1 operand1`; operands are numbers or one number per partition."""
    on_chip(dst, data)
    same_elements(dst, data)
    first = Stage(op0, operand0, reverse0, 0, data)
    second = None if op1 is None else Stage(op1, operand1, reverse1, 1, data)
    if op1 is None and operand1 is not None:
        raise NkiError("operand1 without op1")
    if second is not None and second.op.is_bitwise != first.op.is_bitwise:
        raise NkiError(f"op0={first.op!r} and op1={second.op!r}: both are bitwise, or both arithmetic")
    stages = [stage for stage in (first, second) if stage is not None]
    reads = (data, *tensors(operand0, operand1))
    if first.op.is_bitwise:
        integers_only(dst, data)
        name = choose_engine(engine, ("vector",), dst, *reads)

        def compute_bits() -> None:
            values = _bits(data)
            for stage in stages:
                values = stage.apply_to_bits(values)
            _store_bits(dst, values)

        return Step(name, (dst,), reads, compute_bits)
    name = choose_engine(engine, ("vector", "scalar", "gpsimd"), dst, *reads)

    def compute() -> None:
        values = data.read_float32()
        for stage in stages:
            values = stage.apply(values)
        dst.write(values)

    return Step(name, (dst,), reads, compute)


class Stage:
    """One operator with its operand, of the two that an instruction applies."""

    def __init__(self, op: Any, operand: Any, is_reversed: bool, number: int, data: NkiTensor) -> None:
        self.op, self.operand, self.is_reversed = operator(op, f"op{number}"), operand, is_reversed
        self.partitions, self.role = data.shape[0], f"operand{number}"
        if self.op.arity == 1:
            if operand is not None and not isinstance(operand, NkiTensor) and operand != 0:
                raise NkiError(f"{self.op!r} takes one operand: {self.role} must be None or 0, not {operand!r}")
            return
        if operand is None and self.op.name != "bypass":
            raise NkiError(f"{self.op!r} needs {self.role}")
        if operand is not None:
            check_per_partition(operand, self.partitions, self.role)
            if not self.op.is_bitwise:
                check_float32(operand, self.role)

    def apply(self, values: np.ndarray) -> np.ndarray:
        if self.op.arity == 1 or self.op.name == "bypass":
            return self.op.function(values)
        operand = per_partition(self.operand, self.partitions, self.role)
        return self.op.function(operand, values) if self.is_reversed else self.op.function(values, operand)

    def apply_to_bits(self, values: np.ndarray) -> np.ndarray:
        if self.op.arity == 1:
            return self.op.function(values)
        if isinstance(self.operand, NkiTensor):
            operand = _bits(self.operand)
        else:
            number = self.operand.number() if is_register(self.operand) else int(self.operand)
            operand = np.array(number).astype(values.dtype)
        operand = operand.astype(values.dtype, copy=False)
        return self.op.function(operand, values) if self.is_reversed else self.op.function(values, operand)


@instruction
def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Step:
    """`dst = (data op0 operand0) op1 operand1`, where operand1 is a tile."""
    on_chip(dst, data, operand1)
    same_elements(dst, data, operand1)
    not_both_in_psum(data, operand1, "data and operand1")
    first = Stage(op0, operand0, reverse0, 0, data)
    op1 = _binary(op1, "op1")
    _arithmetic(first.op, op1)

    def compute() -> None:
        values, other = first.apply(data.read_float32()), operand1.read_float32()
        dst.write(op1.function(other, values) if reverse1 else op1.function(values, other))

    return Step("vector", (dst,), (data, operand1, *tensors(operand0)), compute)


@instruction
def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = reduce_cmds.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
) -> Step:
    """`dst = data op0 operand0`, and its reduction along the free axes into the accumulators and `reduce_res`."""
    on_chip(dst, data, *tensors(reduce_res))
    same_elements(dst, data)
    stage = Stage(op0, operand0, reverse0, 0, data)
    reduce_op = operator(reduce_op, "reduce_op", reduces=True)
    _arithmetic(stage.op, reduce_op)

    def compute() -> None:
        values = stage.apply(data.read_float32())
        dst.write(values)
        accumulate("vector", reduce_cmd, reduce_op, values, reduce_res, reduce_init, negates=reduce_res_negate)

    return Step("vector", (dst, *tensors(reduce_res)), (data, *tensors(operand0, reduce_init)), compute)


@instruction
def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = reduce_cmds.reset_reduce,
) -> Step:
    """`dst[:, i] = op1(src[:, i] op0 imm0, dst[:, i - 1])`: a running reduction."""
    on_chip(dst, src)
    same_elements(dst, src)
    stage = Stage(op0, imm0, False, 0, src)
    op1 = operator(op1, "op1", reduces=True)
    if op1.name not in ("add", "subtract", "multiply", "maximum", "minimum"):
        raise NkiError(f"op1={op1!r}: the running operators are add, subtract, multiply, maximum and minimum")
    for tensor in (dst, src):
        if tensor.dtype in INTEGERS_OF_32_BITS:
            raise NkiError(f"32-bit integers are not supported ({tensor.describe()})")
    if reduce_cmd is reduce_cmds.load_reduce and imm1 is None:
        raise NkiError("reduce_cmd.load_reduce starts from imm1, which is None")

    def compute() -> None:
        from ..core import current

        values = stage.apply(src.read_float32())
        kept = current().accumulators.setdefault("vector", np.zeros((128, 1), np.float32))
        partitions = values.shape[0]
        start = np.broadcast_to(np.float32(op1.identity), (partitions, 1))
        if reduce_cmd is reduce_cmds.load_reduce:
            start = np.broadcast_to(per_partition(imm1, partitions, "imm1"), (partitions, 1))
        elif reduce_cmd is reduce_cmds.reduce:
            start = kept[:partitions]
        total = start[:, 0]
        result = np.empty_like(values)
        for column in range(values.shape[1]):
            total = op1.function(values[:, column], total)
            result[:, column] = total
        kept[:partitions, 0] = total
        dst.write(result)

    return Step("vector", (dst,), (src, *tensors(imm0, imm1)), compute)


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
    """`dst[:, i] = (data0[:, i] op0 dst[:, i - 1]) op1 data1[:, i]`, starting from `initial`."""
    on_chip(dst, data0, data1)
    same_elements(dst, data0, data1)
    not_both_in_psum(data0, data1, "data0 and data1")
    check_per_partition(initial, data0.shape[0], "initial")
    op0, op1 = _binary(op0, "op0"), _binary(op1, "op1")
    _arithmetic(op0, op1)

    def compute() -> None:
        left, right = data0.read_float32().T, data1.read_float32().T
        start = per_partition(initial, data0.shape[0], "initial")
        state = np.broadcast_to(start, (data0.shape[0], 1))[:, 0]
        result = np.empty(left.shape, np.float32)
        for column in range(len(left)):
            state = op0.function(state, left[column]) if reverse0 else op0.function(left[column], state)
            state = op1.function(right[column], state) if reverse1 else op1.function(state, right[column])
            result[column] = state
        dst.write(result.T)

    return Step("vector", (dst,), (data0, data1, *tensors(initial)), compute)


@instruction
def reciprocal(dst: NkiTensor, data: NkiTensor) -> Step:
    """`dst = 1 / data`."""
    on_chip(dst, data)
    same_elements(dst, data)
    return Step("vector", (dst,), (data,), lambda: dst.write(1 / data.read_float32()))


def _binary(op: Any, role: str) -> Operator:
    found = operator(op, role)
    if found.arity != 2:
        raise NkiError(f"{role}={found!r} takes one operand, and two are given")
    return found


def _arithmetic(*ops: Operator) -> None:
    for op in ops:
        if op.is_bitwise:
            raise NkiError(f"{op!r} is bitwise: this instruction takes arithmetic operators")


def _bits(tensor: NkiTensor) -> np.ndarray:
    return tensor.read().reshape(tensor.shape[0], -1)


def _store_bits(dst: NkiTensor, values: np.ndarray) -> None:
    dst.write(convert_bits(values, dst.dtype))
