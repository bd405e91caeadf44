"""The accumulators of the Scalar and the Vector Engine: one float32 per partition, which outlive an instruction.

The activations share those of the Scalar Engine; exponential, range_select, select_reduce, tensor_scalar_reduce and
tensor_scalar_cumulative those of the Vector Engine. So a reduction can go over several instructions.
"""

from typing import Any

import numpy as np

from ..core import current
from ..errors import NkiError
from ..operators import Operator
from ..tensor import NkiTensor
from .constants import reduce_cmd as commands
from .operands import on_chip, per_partition


def check_reduction(
    command: Any,
    allowed: str,
    result: Any,
    partitions: int,
    *,
    initial: Any = None,
    has_initial: bool = False,
) -> None:
    """
    Args:
        allowed: the names of the commands that the instruction takes.
        result: the tensor that the accumulators are written to, or None.
        initial: what `load_reduce` starts from; `has_initial` says whether the caller gave it.
    """
    if not isinstance(command, commands) or command.name not in allowed.split():
        names = ", ".join(f"nisa.reduce_cmd.{name}" for name in allowed.split())
        raise NkiError(f"reduce_cmd is one of {names}, not {command!r}")
    if command is commands.load_reduce and initial is None:
        raise NkiError("reduce_cmd.load_reduce starts from a value, and none was given")
    if has_initial and command is not commands.load_reduce:
        raise NkiError(f"a value to start from is only for reduce_cmd.load_reduce, not for reduce_cmd.{command.name}")
    if result is not None:
        on_chip(result)
        if result.shape[0] != partitions or result.size != partitions:
            raise NkiError(f"reduce_res is a tensor of shape ({partitions}, 1), but is {result.describe()}")


def accumulate(engine: str, command: Any, op: Operator, values: np.ndarray, initial: Any = None) -> None:
    """What an instruction that gives `values`, in float32, does with the accumulators of its engine."""
    partitions = values.shape[0]
    if command is commands.idle:
        return
    if command is commands.reset:
        reduced: Any = op.identity
    else:
        reduced = op.reduce(values).reshape(partitions, 1)
        if command is commands.reduce:
            reduced = op.function(read_accumulators(engine, partitions), reduced)
        elif command is commands.load_reduce:
            reduced = op.function(per_partition(initial, partitions, "the initial value"), reduced)
    set_accumulators(engine, reduced, partitions)


def set_accumulators(engine: str, values: Any, partitions: int) -> None:
    registers, is_set = _registers(engine)
    registers[:partitions] = values
    is_set[:partitions] = True


def spoil_accumulators(engine: str) -> None:
    """An instruction that did not ask for them may still have changed them."""
    _registers(engine)[1][:] = False


def read_accumulators(engine: str, partitions: int) -> np.ndarray:
    """
    Raises:
        NkiError: nothing defines what is in them.
    """
    registers, is_set = _registers(engine)
    if not is_set[:partitions].all():
        raise NkiError(
            f"the accumulators of the {engine} engine hold nothing: start the reduction with reduce_cmd.reset_reduce"
        )
    return registers[:partitions]


def write_accumulators(engine: str, result: NkiTensor | None, *, is_negated: bool = False) -> None:
    if result is not None:
        values = read_accumulators(engine, result.shape[0])
        result.write(-values if is_negated else values)


def _registers(engine: str) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, (partitions, 1), and which of them are defined."""
    kept = current().accumulators
    if engine not in kept:
        partitions = current().run.chip.partitions
        kept[engine] = np.zeros((partitions, 1), np.float32), np.zeros(partitions, bool)
    return kept[engine]
