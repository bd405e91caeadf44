"""Arithmetic and bitwise operators, element by element."""

from typing import Any

import numpy as np

from ..dtypes import convert_bits
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..operators import OPERATORS, Operator
from ..registers import is_register
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import (
    SCALAR_ENGINE_PAIRS,
    apply,
    apply_number,
    check_stage,
    choose_engine,
    element_operator,
    float32_operand,
    generation,
    is_element_operator,
    is_integer,
    member,
    not_both_in_psum,
    on_chip,
    operator_of,
    same_elements,
    takes_operand,
    tensors,
)


_WORDS = frozenset(("int32", "uint32"))

# What the Scalar Engine's tensor_scalar has: multiply and add, one after the other or alone. From NeuronCore-v4 on
# also what activate2 documents.
_SCALAR_ENGINE = {("multiply", "add"), ("multiply", None), ("add", None)}
_SCALAR_ENGINE_V4 = _SCALAR_ENGINE | SCALAR_ENGINE_PAIRS | {("subtract", None), ("bypass", None)}


@instruction
def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Any = engines.unknown) -> Step:
    """`dst = data1 op data2`.

    In float32; 32-bit integers exactly, on GpSimd, where all operands are in SBUF and no other engine is named; bitvec
    operators on the bits of integers.
    """
    on_chip(dst, data1, data2)
    same_elements(dst, data1, data2)
    not_both_in_psum(data1, data2, "data1 and data2")
    op = operator_of(op)
    is_element_operator(op, "op")
    if op.arity != 2:
        raise NkiError(f"op={op} has one operand, and tensor_tensor two: use nisa.tensor_scalar")
    if op.is_bitwise:
        unit = choose_engine(engine, ("vector",), dst, data1, data2, why=" for bitvec operators")
        for tensor, role in ((dst, "dst"), (data1, "data1"), (data2, "data2")):
            is_integer(tensor, role)
        compute = _bits_of_two(dst, data1, data2, op)
    else:
        unit, is_exact = _engine_of_two(engine, dst, data1, data2, op)
        compute = _integers_of_two(dst, data1, data2, op) if is_exact else _floats_of_two(dst, data1, data2, op)
    return Step(unit, (dst,), (data1, data2), compute)


def _engine_of_two(engine: Any, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> tuple[str, bool]:
    """Who executes an arithmetic operator, and whether in integers."""
    operands = (dst, data1, data2)
    are_words = all(tensor.dtype in _WORDS for tensor in operands)
    if op.name == "power":
        return choose_engine(engine, ("gpsimd",), *operands, why=", nl.power"), are_words
    element_operator(op, "vector")
    if are_words:
        # What the documentation names the default; PSUM leaves it to the Vector Engine, which rounds to float32.
        in_psum = any(tensor.buffer is MemoryRegion.psum for tensor in operands)
        order = ("vector", "gpsimd") if in_psum else ("gpsimd", "vector")
        unit = choose_engine(engine, order, *operands)
        return unit, unit == "gpsimd"
    return choose_engine(engine, ("vector", "gpsimd"), *operands), False


def _floats_of_two(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Any:
    return lambda: dst.write(op.function(data1.read_float32(), data2.read_float32()))


def _integers_of_two(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Any:
    def compute() -> None:
        first, second = _rows(data1), _rows(data2)
        if first.dtype != second.dtype:
            first, second = first.astype(np.int64), second.astype(np.int64)
        write_integers(dst, op.function(first, second))

    return compute


def _bits_of_two(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Operator) -> Any:
    def compute() -> None:
        first, second = _rows(data1), _rows(data2)
        common = max(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
        values = op.function(first.astype(common, copy=False), second.astype(common, copy=False))
        dst.write(convert_bits(values, dst.dtype))

    return compute


def _rows(tensor: NkiTensor) -> np.ndarray:
    """The elements as they are stored: (partitions, elements per partition)."""
    return tensor.read().reshape(tensor.shape[0], -1)


def write_integers(dst: NkiTensor, values: np.ndarray) -> None:
    """Integers keep their low bits, as a 32-bit unit does; what an operator gave in floats is cast."""
    dst.write(convert_bits(values, dst.dtype) if values.dtype.kind in "iu" else values)


@instruction
def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engines.unknown,
) -> Step:
    """`dst = (data op0 operand0) op1 operand1`, with operands that are numbers or one number per partition.

    In float32; bitvec operators on the bits of integers. 32-bit integers with integer operands are added, subtracted
    and multiplied exactly, as addresses are computed.
    """
    on_chip(dst, data)
    same_elements(dst, data)
    # Public kernels leave out the first operator by giving None.
    first = OPERATORS["bypass"] if op0 is None else operator_of(op0, "op0")
    second = None if op1 is None else operator_of(op1, "op1")
    if second is None and operand1 is not None:
        raise NkiError(f"operand1={operand1!r} without op1: leave both out, or name the operator")
    stages = [(first, operand0, reverse0, "0")]
    if second is not None:
        stages.append((second, operand1, reverse1, "1"))
    kinds = {op.is_bitwise for op, *_ in stages if op.name != "bypass"}
    if len(kinds) == 2:
        raise NkiError(f"op0={first} and op1={second} are of two kinds: use two bitvec or two arithmetic operators")
    for op, operand, _, index in stages:
        check_stage(op, operand, data.shape[0], index)
    if True in kinds:
        unit = choose_engine(engine, ("vector",), dst, data, why=" for bitvec operators")
        compute = _bits(dst, data, stages)
    else:
        unit = _scalar_engine_of(engine, first, second, dst, data, *tensors(operand0, operand1))
        compute = _integers(dst, data, stages) if _are_addresses(dst, data, stages) else _floats(dst, data, stages)
    return Step(unit, (dst,), (data, *tensors(operand0, operand1)), compute)


def _scalar_engine_of(engine: Any, first: Operator, second: Operator | None, *operands: NkiTensor) -> str:
    """Who executes arithmetic operators: what the Vector Engine has not is GpSimd's, and the Scalar Engine has few."""
    engine = member(engine, engines)
    given = [op for op in (first, second) if op is not None and op.name != "bypass"]
    if any(op.engines == {"gpsimd"} for op in given):
        for op, role in ((first, "op0"), (second, "op1")):
            if op in given:
                element_operator(op, "gpsimd", role)
        return choose_engine(engine, ("gpsimd",), *operands, why=f", {' and '.join(map(repr, given))}")
    for op, role in ((first, "op0"), (second, "op1")):
        if op in given:
            element_operator(op, "vector", role)
    if engine is engines.scalar:
        pair = (first.name, None if second is None else second.name)
        pairs = _SCALAR_ENGINE_V4 if generation() >= 4 else _SCALAR_ENGINE
        if pair not in pairs:
            raise NkiError(
                f"the Scalar Engine does not execute op0={first} with op1={second}: it takes nl.multiply and nl.add, "
                "or either of them alone; use the Vector Engine"
            )
    return choose_engine(engine, ("vector", "scalar"), *operands, why=f" with op0={first}")


def _are_addresses(dst: NkiTensor, data: NkiTensor, stages: list[Any]) -> bool:
    """Whether all is 32-bit integers."""
    if dst.dtype not in _WORDS or data.dtype not in _WORDS:
        return False
    return all(
        op.name in ("add", "subtract", "multiply") and _is_integral(operand) or op.name == "bypass"
        for op, operand, *_ in stages
    )


def _is_integral(operand: Any) -> bool:
    if isinstance(operand, NkiTensor):
        return operand.dtype in _WORDS
    return isinstance(operand, (int, np.integer)) or is_register(operand)


def _floats(dst: NkiTensor, data: NkiTensor, stages: list[Any]) -> Any:
    partitions = data.shape[0]
    for op, operand, _, index in stages:
        if takes_operand(op):
            float32_operand(operand, partitions, f"operand{index}")

    def compute() -> None:
        values = data.read_float32()
        for op, operand, is_reversed, index in stages:
            values = apply_number(op, values, operand, f"operand{index}", is_reversed)
        dst.write(values)

    return compute


def _integers(dst: NkiTensor, data: NkiTensor, stages: list[Any]) -> Any:
    def compute() -> None:
        values = _rows(data).astype(np.int64)
        for op, operand, is_reversed, _ in stages:
            values = apply(op, values, _integer_operand(operand, np.dtype(np.int64)), is_reversed)
        write_integers(dst, values)

    return compute


def _bits(dst: NkiTensor, data: NkiTensor, stages: list[Any]) -> Any:
    is_integer(dst, "dst")
    is_integer(data, "data")
    for op, operand, _, index in stages:
        if isinstance(operand, NkiTensor):
            is_integer(operand, f"operand{index}")
        elif takes_operand(op) and not _is_integral(operand):
            raise NkiError(f"operand{index} of the bitvec operator {op} must be an integer, but is {operand!r}")

    def compute() -> None:
        values = _rows(data)
        if dst.dtype.itemsize > data.dtype.itemsize:
            values = convert_bits(values, dst.dtype)
        for op, operand, is_reversed, _ in stages:
            values = apply(op, values, _integer_operand(operand, values.dtype), is_reversed)
        dst.write(convert_bits(values, dst.dtype))

    return compute


def _integer_operand(operand: Any, storage: np.dtype) -> Any:
    """The bits of a number, or of one number per partition, as integers of `storage`."""
    if operand is None:
        return None
    if isinstance(operand, NkiTensor):
        return _rows(operand).astype(storage)
    number = operand.number() if is_register(operand) else int(operand)
    return np.array(number % (1 << 64), np.uint64).astype(storage)


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
    """`dst = (data op0 operand0) op1 operand1`: first with a number or one per partition, then with a tensor."""
    on_chip(dst, data, operand1)
    same_elements(dst, data, operand1)
    not_both_in_psum(data, operand1, "data and operand1")
    first, second = element_operator(op0, "vector", "op0"), element_operator(op1, "vector", "op1")
    if second.arity != 2:
        raise NkiError(f"op1={second} has one operand, and here are two: use nisa.tensor_scalar")
    partitions = data.shape[0]
    check_stage(first, operand0, partitions, "0")

    def compute() -> None:
        values = apply_number(first, data.read_float32(), operand0, "operand0", reverse0)
        dst.write(apply(second, values, operand1.read_float32(), reverse1))

    return Step("vector", (dst,), (data, operand1, *tensors(operand0)), compute)


@instruction
def reciprocal(dst: NkiTensor, data: NkiTensor) -> Step:
    """`dst = 1 / data`, more exact than the Scalar Engine's."""
    on_chip(dst, data)
    same_elements(dst, data)
    return Step("vector", (dst,), (data,), lambda: dst.write(np.float32(1) / data.read_float32()))
