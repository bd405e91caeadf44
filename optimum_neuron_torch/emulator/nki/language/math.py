"""Operators called on tiles: `nl.add(x, y)`, `nl.exp(x)`.

Each allocates a tile in SBUF and issues the instruction that computes it. What no single instruction computes, such as
division, is issued as one step of the Vector Engine, exact to float32.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .. import isa
from ..core import current
from ..dtypes import DType
from ..errors import NkiError
from ..instruction import NkiInstruction, Step, instruction
from ..isa.operands import on_chip, same_elements, tensors
from ..memory import MemoryRegion
from ..operators import OPERATORS, Operator
from ..tensor import NkiTensor
from .creation import full
from .promotion import result_dtype


def apply(operator: Operator, operands: tuple[Any, ...], dtype: Any = None) -> NkiTensor:
    """A new tile of SBUF with the operator's values.

    Raises:
        NkiError: no operand is a tile, they do not fit together, or the operator has no values of its own.
    """
    call = f"nl.{operator.name}"
    tiles = tensors(*operands)
    if not tiles:
        raise NkiError(f"at least one operand must be a tile, but got {', '.join(map(repr, operands))}", op=call)
    for tile in tiles:
        check_tile(call, tile)
    if operator.name in _ONLY_IN_INSTRUCTIONS:
        raise NkiError(f"{call} is only for op= of instructions; it is not called on tiles", op=call)
    shape = common_shape(call, *tiles)
    operands = tuple(repeated(operand, shape) if isinstance(operand, NkiTensor) else operand for operand in operands)
    dst = new_tile(shape, result_dtype(dtype, *operands))
    if len(operands) == 1:
        _apply_to_one(operator, dst, operands[0])
    else:
        _apply_to_two(operator, dst, *operands)
    return dst


_ONLY_IN_INSTRUCTIONS = frozenset(("average", "bypass", "prelu"))

# Activation functions that the Scalar Engine has only for some inputs, or less exactly: see `apply`.
_REDUCED_BEFORE = frozenset(("sin",))


def new_tile(shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion = MemoryRegion.sbuf) -> NkiTensor:
    return current().allocate(shape, dtype, buffer)


def check_tile(call: str, tile: Any) -> None:
    """
    Raises:
        NkiError: it is no tensor in SBUF or PSUM.
    """
    if not isinstance(tile, NkiTensor):
        raise NkiError(f"takes a tile in SBUF or PSUM, but got {tile!r}", op=call)
    if not tile.is_on_chip:
        raise NkiError(f"takes tiles in SBUF or PSUM, not {tile.describe()}: nl.load brings it on chip", op=call)


def common_shape(call: str, *tiles: NkiTensor) -> tuple[int, ...]:
    """The shape that tiles of one rank broadcast to, along free dimensions."""
    shape = tiles[0].shape
    for tile in tiles[1:]:
        fits = tile.ndim == len(shape) and tile.shape[0] == shape[0]
        if not fits or any(a != b and 1 not in (a, b) for a, b in zip(shape, tile.shape, strict=True)):
            raise NkiError(
                f"{' and '.join(t.describe() for t in tiles)} do not fit: tiles have the same number of partitions "
                "and of dimensions, and free dimensions of one size or 1 (nl.broadcast_to repeats partitions)",
                op=call,
            )
        shape = tuple(max(a, b) for a, b in zip(shape, tile.shape, strict=True))
    return shape


def repeated(tile: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """A view that repeats the free dimensions of size 1."""
    for dim in range(1, len(shape)):
        if tile.shape[dim] != shape[dim]:
            tile = tile.broadcast(dim, shape[dim])
    return tile


def _apply_to_one(operator: Operator, dst: NkiTensor, x: NkiTensor) -> None:
    if operator.name in _BY_INSTRUCTION:
        _BY_INSTRUCTION[operator.name](dst, x)
    elif operator.is_activation and operator.name not in _REDUCED_BEFORE:
        isa.activation(dst=dst, op=operator, data=x)
    else:
        issue_values(operator, dst, x)


def _apply_to_two(operator: Operator, dst: NkiTensor, x: Any, y: Any) -> None:
    if not operator.engines:
        issue_values(operator, dst, x, y)
    elif isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        isa.tensor_tensor(dst=dst, data1=x, data2=y, op=operator)
    elif isinstance(x, NkiTensor):
        isa.tensor_scalar(dst=dst, data=x, op0=operator, operand0=y)
    else:
        isa.tensor_scalar(dst=dst, data=y, op0=operator, operand0=x, reverse0=True)


def _copy(dst: NkiTensor, x: NkiTensor) -> None:
    isa.tensor_copy(dst=dst, src=x)


def _reciprocal(dst: NkiTensor, x: NkiTensor) -> None:
    isa.reciprocal(dst=dst, data=x)


def _rsqrt(dst: NkiTensor, x: NkiTensor) -> None:
    # On GpSimd, which is more precise than the Scalar Engine and cannot access PSUM, as of NKI 0.5.
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["rsqrt"], operand0=0.0, engine=isa.constants.engine.gpsimd)


def _negative(dst: NkiTensor, x: NkiTensor) -> None:
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["multiply"], operand0=-1.0)


def _invert(dst: NkiTensor, x: NkiTensor) -> None:
    if not x.dtype.is_integer:
        raise NkiError(f"bits are of integers, not of {x.describe()}", op="nl.invert")
    all_ones = x.dtype.max if x.dtype.min == 0 else -1
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["bitwise_xor"], operand0=all_ones)


def _logical_not(dst: NkiTensor, x: NkiTensor) -> None:
    isa.tensor_scalar(dst=dst, data=x, op0=OPERATORS["logical_xor"], operand0=1.0)


_BY_INSTRUCTION: dict[str, Callable[[NkiTensor, NkiTensor], None]] = {
    "copy": _copy,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "negative": _negative,
    "invert": _invert,
    "logical_not": _logical_not,
}


def issue_values(operator: Operator, dst: NkiTensor, *operands: Any) -> NkiInstruction:
    """Computes an operator that no instruction takes, in one step, recorded under its own name."""
    return _issuer(operator.name)(dst, *operands)


@cache
def _issuer(name: str) -> Callable[..., NkiInstruction]:
    operator = OPERATORS[name]

    def step(dst: NkiTensor, *operands: Any) -> Step:
        tiles = tensors(*operands)
        on_chip(dst, *tiles)
        same_elements(dst, *tiles)

        def compute() -> None:
            values = [x.read_float32() if isinstance(x, NkiTensor) else np.float32(x) for x in operands]
            dst.write(operator.function(*values))

        return Step("vector", (dst,), tiles, compute)

    step.__name__ = step.__qualname__ = name
    return instruction(step, namespace="nl")


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """A tile with the elements of `x` where `condition` is not zero, and of `y` elsewhere."""
    tiles = tensors(condition, x, y)
    for tile in (condition, *tiles):
        check_tile("nl.where", tile)
    shape = common_shape("nl.where", *tiles)
    values_dtype = result_dtype(dtype, *(tensors(x, y) or (condition,)))
    dst = _filled(y, shape, values_dtype)
    chosen = _filled(x, shape, values_dtype)
    predicate = apply(OPERATORS["not_equal"], (repeated(condition, shape), 0.0), "uint8")
    isa.tensor_copy_predicated(dst=dst, src=chosen, predicate=predicate)
    return dst


def _filled(source: Any, shape: tuple[int, ...], dtype: DType) -> NkiTensor:
    """A new tile with the elements of a tile, or with a number."""
    if not isinstance(source, NkiTensor):
        return full(shape, source, dtype)
    tile = new_tile(shape, dtype)
    isa.tensor_copy(dst=tile, src=repeated(source, shape))
    return tile


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """A tile with the elements of `x`, each of them zero with probability `rate`; the others are not scaled."""
    check_tile("nl.dropout", x)
    wanted = result_dtype(dtype, x)
    dst = new_tile(x.shape, x.dtype)
    isa.dropout(dst=dst, data=x, prob=rate)
    return dst if wanted is x.dtype else apply(OPERATORS["copy"], (dst,), wanted)
