"""Checks that instructions have in common, and how they read numbers that may be given per partition.

Sources: the Neuron documentation's NKI architecture guides (memories, engines, partition access) and API reference.
"""

import enum
from typing import Any

import numpy as np

from ..core import current, warn_once
from ..dtypes import DType
from ..errors import NkiError
from ..memory import MemoryRegion
from ..operators import OPERATORS, Operator, as_operator
from ..registers import is_register
from ..tensor import NkiTensor
from .constants import engine as engines


def on_chip(*tensors: Any) -> None:
    """Every operand is a tensor in SBUF or PSUM, of partitions that an engine can access."""
    for tensor in tensors:
        if not isinstance(tensor, NkiTensor):
            raise NkiError(f"operands are tensors in SBUF or PSUM, but got {tensor!r}")
        if not tensor.is_on_chip:
            raise NkiError(
                f"engines access SBUF and PSUM, not {tensor.describe()}: bring it on chip with nisa.dma_copy"
            )
        _check_partitions(tensor)


def _check_partitions(tensor: NkiTensor) -> None:
    """An access to more than 64 partitions starts at partition 0, one to more than 32 at 0 or 64, else at any 32."""
    if tensor.byte_offset < tensor.storage.pitch:  # from partition 0 on
        return
    start, count = tensor.start_partition, tensor.shape[0]
    allowed = (0,) if count > 64 else (0, 64) if count > 32 else (0, 32, 64, 96)
    if start not in allowed:
        raise NkiError(
            f"{count} partitions from partition {start} on: an access to that many starts at partition "
            f"{' or '.join(map(str, allowed))} ({tensor.describe()})"
        )


def in_buffer(tensor: NkiTensor, *buffers: MemoryRegion, role: str) -> None:
    if tensor.buffer not in buffers:
        names = " or ".join(buffer.name.upper() for buffer in buffers)
        raise NkiError(f"{role} must be in {names}, but is {tensor.describe()}")


def same_elements(first: NkiTensor, *others: NkiTensor) -> None:
    """All operands have as many partitions and elements per partition; nothing is broadcast."""
    for other in others:
        if other.shape[0] != first.shape[0] or other.size != first.size:
            raise NkiError(
                f"{first.shape[0]} partitions of {first.free_size} elements against {other.shape[0]} of "
                f"{other.free_size}: operands have the same numbers of both ({first.describe()}, {other.describe()})"
            )


def not_both_in_psum(first: Any, second: NkiTensor, names: str) -> None:
    if isinstance(first, NkiTensor) and first.buffer is MemoryRegion.psum and second.buffer is MemoryRegion.psum:
        raise NkiError(f"{names} cannot both be in PSUM: copy one to SBUF first, with nisa.tensor_copy")


def per_partition(value: Any, partitions: int, role: str) -> Any:
    """A number, or a tensor of one number per partition, as float32 that broadcasts over (partitions, elements)."""
    if isinstance(value, NkiTensor):
        check_per_partition(value, partitions, role)
        return value.read_float32()
    if is_register(value):
        return np.float32(value.number())
    return np.float32(value)


def check_per_partition(value: Any, partitions: int, role: str) -> None:
    if isinstance(value, NkiTensor):
        on_chip(value)
        if value.shape[0] != partitions or value.size != partitions:
            raise NkiError(f"{role} is a number or a tensor of shape ({partitions}, 1), but is {value.describe()}")
    elif not isinstance(value, (int, float, np.number)) and not is_register(value):
        raise NkiError(f"{role} is a number or a tensor of shape ({partitions}, 1), but is {value!r}")


def tensors(*values: Any) -> tuple[NkiTensor, ...]:
    """Those of `values` that are tensors: what an instruction reads."""
    return tuple(value for value in values if isinstance(value, NkiTensor))


def generation() -> int:
    """Of the NeuronCore that the kernel runs on."""
    return current().run.chip.generation


def needs_generation(minimum: int, what: str) -> None:
    """
    Raises:
        NkiError: the chip is older than NeuronCore-v`minimum`.
    """
    chip = current().run.chip
    if chip.generation < minimum:
        raise NkiError(f"{what} needs NeuronCore-v{minimum} or later; the kernel runs on {chip.name}")


# Engines


# What the Scalar Engine applies one after the other before its function, as activate2 documents it.
SCALAR_ENGINE_PAIRS = frozenset(
    {
        ("multiply", "add"),
        ("multiply", "subtract"),
        ("multiply", "bypass"),
        ("add", "bypass"),
        ("subtract", "bypass"),
        ("bypass", "bypass"),
    }
)


def choose_engine(given: Any, allowed: tuple[str, ...], *operands: NkiTensor, why: str = "") -> str:
    """The engine that executes: the one asked for, else the first of `allowed` that reaches the operands.

    Raises:
        NkiError: the one asked for does not execute this, or does not reach PSUM, as GpSimd does not.
    """
    choices = " or ".join(f"nisa.engine.{name}" for name in allowed)
    if not isinstance(given, engines):
        raise NkiError(f"engine={given!r}: it is a member of nisa.engine, here {choices}")
    in_psum = next((tensor for tensor in operands if tensor.buffer is MemoryRegion.psum), None)
    if given is engines.unknown:
        name = next((name for name in allowed if name != "gpsimd" or in_psum is None), "gpsimd")
    elif given.name in allowed:
        name = given.name
    else:
        raise NkiError(f"engine={given.name}: that one does not execute this{why}; it takes {choices}")
    if name == "gpsimd" and in_psum is not None:
        others = " or ".join(f"nisa.engine.{name}" for name in allowed if name != "gpsimd")
        way = f"use {others}, or copy" if others else "copy"
        raise NkiError(
            f"engine gpsimd: GpSimd cannot access PSUM ({in_psum.describe()}); {way} it to SBUF with nisa.tensor_copy"
        )
    return name


# Operators


def operator_of(given: Any, role: str = "op") -> Operator:
    """
    Raises:
        NkiError: it is no operator of nki.language.
    """
    if type(given) is Operator:
        return given
    if isinstance(given, str):
        raise NkiError(f"{role}={given!r}: operators are objects of nki.language, e.g. nl.add, and no names")
    if getattr(given, "__module__", "").endswith("nki.language.reductions") and given.__name__ in ("max", "min"):
        return OPERATORS[f"{given.__name__}imum"]  # the documentation says nl.max and nl.min too
    try:
        return as_operator(given)
    except ValueError as error:
        raise NkiError(f"{role}: {error}") from None


def element_operator(given: Any, engine: str, role: str = "op", *, is_bitwise: bool = False) -> Operator:
    """An operator that `engine` applies to every element; bitvec operators only where `is_bitwise`."""
    op = operator_of(given, role)
    if op.is_bitwise and not is_bitwise:
        raise NkiError(
            f"{role}={op}: this takes arithmetic operators; nisa.tensor_scalar and tensor_tensor take bitvec ones"
        )
    is_element_operator(op, role)
    if engine not in op.engines:
        raise NkiError(f"{role}={op}: the {engine} engine does not have it, but {' and '.join(sorted(op.engines))}")
    if op.first_generation > 2:
        needs_generation(op.first_generation, f"{role}={op}")
    return op


def is_element_operator(op: Operator, role: str) -> None:
    if not op.engines:
        way = "nisa.activation computes it" if op.is_activation else f"call {op} on tiles"
        raise NkiError(f"{role}={op} is no arithmetic or bitwise operator: {way}")


def reduction_operator(given: Any, role: str, *allowed: str) -> Operator:
    """An operator that reduces, one of `allowed` if there are any."""
    op = operator_of(given, role)
    if op.reduce is None or allowed and op.name not in allowed:
        names = allowed or [name for name, each in OPERATORS.items() if each.reduce is not None]
        raise NkiError(f"{role}={op} is no reduction of this instruction: it takes nl.{', nl.'.join(names)}")
    if op.first_generation > 2:
        needs_generation(op.first_generation, f"{role}={op}")
    return op


def apply(op: Operator, data: np.ndarray, operand: Any, is_reversed: bool = False) -> np.ndarray:
    """`data op operand`, or the other way round; unary operators take no operand."""
    if op.arity == 1:
        return op.function(data)
    if op.name == "bypass":
        return data
    return op.function(operand, data) if is_reversed else op.function(data, operand)


def takes_operand(op: Operator) -> bool:
    """Whether it has a second operand that it uses."""
    return op.arity == 2 and op.name != "bypass"


def check_stage(op: Operator, operand: Any, partitions: int, index: str) -> None:
    """The operand of `op{index}`: a number or one per partition; for unary operators nothing or 0."""
    if takes_operand(op):
        if operand is None:
            raise NkiError(f"op{index}={op} needs operand{index}: a number, or a tensor of one number per partition")
        check_per_partition(operand, partitions, f"operand{index}")
    elif op.arity == 1 and operand is not None and (isinstance(operand, NkiTensor) or operand != 0):
        raise NkiError(f"op{index}={op} has one operand: operand{index} must be None or 0, but is {operand!r}")


def apply_number(op: Operator, data: np.ndarray, operand: Any, role: str, is_reversed: bool = False) -> np.ndarray:
    """`data op operand` where the operand is a number or one per partition."""
    number = per_partition(operand, data.shape[0], role) if takes_operand(op) else None
    return apply(op, data, number, is_reversed)


# Dtypes


def has_dtype(tensor: NkiTensor, role: str, *allowed: DType | str) -> None:
    if tensor.dtype not in allowed:
        raise NkiError(f"{role} has dtype {' or '.join(allowed)}, but is {tensor.describe()}")


def is_integer(tensor: NkiTensor, role: str) -> None:
    if not tensor.dtype.is_integer:
        raise NkiError(f"{role}: bitvec operators take integers, but it is {tensor.describe()}; view it as an integer")


def float32_operand(value: Any, partitions: int, role: str) -> None:
    """A number, or a float32 tensor of one number per partition."""
    check_per_partition(value, partitions, role)
    if isinstance(value, NkiTensor) and value.dtype != "float32":
        raise NkiError(f"{role} must be float32, but is {value.describe()}: copy it with nisa.tensor_copy first")


def constant(value: Any, role: str, *, is_integer: bool = False) -> Any:
    """A number that is known when the kernel is compiled."""
    kinds = (int, np.integer) if is_integer else (int, float, np.number)
    if not isinstance(value, kinds):
        raise NkiError(f"{role} is {'an integer' if is_integer else 'a number'} that is a constant, not {value!r}")
    return value


# Enumerations


def member(value: Any, kind: type[enum.Enum]) -> Any:
    """`value` as a member of one of nki.isa's enumerations; older kernels pass the numbers of their members.

    Raises:
        NkiError: it is none.
    """
    if isinstance(value, kind):
        return value
    if type(value) is int and value in [one.value for one in kind]:
        warn_once(f"{kind.__name__}={value} is a number: pass nisa.{kind.__name__}.{kind(value).name}")
        return kind(value)
    raise NkiError(f"{kind.__name__} is one of {', '.join(f'nisa.{one}' for one in kind)}, but is {value!r}")
