"""Checks that instructions have in common, and how they read numbers that may be given per partition.

Sources: the Neuron documentation's NKI architecture guides (memories, engines, partition access) and API reference.
"""

import enum
from typing import Any

import numpy as np

from ..core import current, warn_once
from ..errors import NkiError
from ..memory import MemoryRegion
from ..operators import Operator, as_operator
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


def is_vector_operand(value: Any) -> bool:
    return isinstance(value, NkiTensor)


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


def needs_generation(minimum: int, what: str) -> None:
    """
    Raises:
        NkiError: the chip is older than NeuronCore-v`minimum`.
    """
    chip = current().run.chip
    if chip.generation < minimum:
        raise NkiError(f"{what} needs NeuronCore-v{minimum} or later; the kernel runs on {chip.name}")


def accumulate(
    engine: str,
    command: Any,
    operator: Operator,
    values: np.ndarray,
    result: NkiTensor | None,
    initial: Any = None,
    *,
    negates: bool = False,
) -> None:
    """What an instruction with `reduce_cmd` does with its engine's accumulators: one float32 per partition.

    They outlive the instruction, so a reduction can go over several.
    """
    name = command.name
    partitions = values.shape[0]
    kept = current().accumulators.setdefault(engine, np.zeros((current().run.chip.partitions, 1), np.float32))
    if name == "reset":
        kept[:partitions] = operator.identity
    elif name != "idle":
        reduced = operator.reduce(values).reshape(partitions, 1)
        if name == "reduce":
            reduced = operator.function(kept[:partitions], reduced)
        elif name == "load_reduce":
            reduced = operator.function(per_partition(initial, partitions, "reduce_init"), reduced)
        kept[:partitions] = reduced
    if result is not None:
        result.write(-kept[:partitions] if negates else kept[:partitions])


def choose_engine(engine: Any, allowed: tuple[str, ...], *operands: Any) -> str:
    """The name of the engine that runs it: the one asked for, or the first of `allowed` that can reach the operands.

    Raises:
        NkiError: the engine that was asked for does not run this, or cannot reach PSUM.
    """
    touches_psum = any(isinstance(x, NkiTensor) and x.buffer is MemoryRegion.psum for x in operands)
    name = getattr(engine, "name", None)
    if not isinstance(engine, engines):
        raise NkiError(f"engine is a member of nisa.engine, but is {engine!r}")
    if name == "unknown":
        return next((one for one in allowed if one != "gpsimd" or not touches_psum), allowed[0])
    if name not in allowed:
        raise NkiError(f"engine={name}: this runs on {' or '.join(allowed)}")
    if name == "gpsimd" and touches_psum:
        raise NkiError("engine=gpsimd: the GpSimd engine cannot access PSUM; use vector or scalar")
    return name


def not_both_in_psum(first: NkiTensor, second: NkiTensor, names: str) -> None:
    if first.buffer is MemoryRegion.psum and second.buffer is MemoryRegion.psum:
        raise NkiError(f"{names} cannot both be in PSUM: copy one to SBUF first, with nisa.tensor_copy")


def operator(op: Any, role: str, *, reduces: bool = False, activates: bool = False) -> Operator:
    """`op` as one of `nki.language`'s operators.

    Args:
        reduces: whether it is to reduce.
        activates: whether it is to be an activation function; anything else is arithmetic or bitwise.

    Raises:
        NkiError: it is none of that kind, or newer than the chip.
    """
    try:
        found = as_operator(op)
    except ValueError as error:
        raise NkiError(f"{role}: {error}") from None
    if reduces and found.reduce is None:
        raise NkiError(f"{role}={found!r} is no reduction")
    if not activates:
        if not found.engines:
            way = "nisa.activation computes it" if found.is_activation else f"call {found!r} on tiles"
            raise NkiError(f"{role}={found!r} is no arithmetic or bitwise operator: {way}")
        needs_generation(found.first_generation, f"{role}={found!r}")
    return found


def integers_only(*tensors: NkiTensor) -> None:
    for tensor in tensors:
        if not tensor.dtype.is_integer:
            raise NkiError(f"bitwise operators take integer tensors, not {tensor.describe()}")


def check_float32(value: Any, role: str) -> None:
    if isinstance(value, NkiTensor) and value.dtype != "float32":
        raise NkiError(f"{role} must be float32, but is {value.describe()}")


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
