"""Registers of the engines' sequencers: numbers for loops and for dynamic addresses."""

from typing import Any

import numpy as np

from ..core import current
from ..errors import NkiError
from ..memory import MemoryRegion
from ..registers import VirtualRegister, is_register
from ..tensor import NkiTensor


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A register; with `x` it holds that integer."""
    current().run.count_step()
    if x is None:
        return VirtualRegister()
    return VirtualRegister(_integer(x, "nisa.register_alloc"))


def register_move(dst: VirtualRegister, src: Any) -> None:
    """`dst = src`, of an integer or another register."""
    op = "nisa.register_move"
    current().run.count_step()
    _check_register(dst, op)
    dst.value = src.number() if is_register(src) else _integer(src, op)
    dst.is_unknown = is_register(src) and src.is_unknown


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """`dst` becomes the one element of `src`, in HBM or SBUF."""
    op = "nisa.register_load"
    core = current()
    core.run.count_step()
    _check_register(dst, op)
    _check_scalar(src, op, "src")
    if not src.dtype.is_integer:
        raise NkiError(f"a register holds an integer, but src is {src.describe()}", op=op)
    if core.is_tracing:
        dst.value, dst.is_unknown = 0, True
        return
    dst.value, dst.is_unknown = int(src.read().reshape(-1)[0]), False


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """The one element of `dst`, in HBM or SBUF, becomes what is in `src`."""
    op = "nisa.register_store"
    core = current()
    core.run.count_step()
    _check_register(src, op)
    _check_scalar(dst, op, "dst")
    number = src.number()
    if not core.is_tracing:
        dst.write(np.full(dst.shape, number, np.int64))


def _check_register(register: Any, op: str) -> None:
    if not is_register(register):
        raise NkiError(f"takes a register from nisa.register_alloc, but got {register!r}", op=op)


def _check_scalar(tensor: Any, op: str, role: str) -> None:
    if not isinstance(tensor, NkiTensor) or tensor.size != 1 or tensor.buffer is MemoryRegion.psum:
        given = tensor.describe() if isinstance(tensor, NkiTensor) else repr(tensor)
        raise NkiError(f"{role} is a tensor of one element in HBM or SBUF, but is {given}", op=op)


def _integer(value: Any, op: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise NkiError(f"a register holds an integer, but got {value!r}", op=op)
    if not -(2**31) <= value < 2**32:
        raise NkiError(f"a register has 32 bits, and {value} needs more", op=op)
    return int(value)
