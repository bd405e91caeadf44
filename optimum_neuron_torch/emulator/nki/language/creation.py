"""Tensors that a kernel makes."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from .. import isa
from ..core import current
from ..dtypes import DType, as_dtype
from ..errors import NkiError
from ..instruction import NkiInstruction, Step, instruction
from ..memory import MemoryRegion
from ..operators import OPERATORS
from ..tensor import NkiTensor


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A tensor whose elements nothing has written yet.

    `address` = (partition, byte in the partition) places it in the physical memory of SBUF or PSUM.

    Raises:
        NkiError: it does not fit.
    """
    return current().allocate(shape, _known(dtype), buffer, name, address)


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A tensor filled with a number.

    Raises:
        NkiError: the number is none of the dtype's.
    """
    tensor = ndarray(shape, dtype, buffer, name)
    fill_value = _value_of(tensor.dtype, fill_value)
    if tensor.is_on_chip:
        isa.memset(dst=tensor, value=fill_value)
    else:
        _fill("full")(tensor, fill_value)
    return tensor


def _value_of(dtype: DType, value: Any) -> int | float:
    if not isinstance(value, (int, float, np.number, np.bool_)):
        raise NkiError(f"fill_value is a number known before the kernel runs, but is {value!r}", op="nl.full")
    if dtype.is_float:
        return float(value)
    is_whole = bool(np.isfinite(value)) and value == int(value)
    if not is_whole:
        raise NkiError(f"fill_value={value!r} is no {dtype}: pass an integer", op="nl.full")
    if dtype.min is not None and not dtype.min <= value <= dtype.max:
        raise NkiError(f"fill_value={value!r}: {dtype} goes from {dtype.min} to {dtype.max}", op="nl.full")
    return int(value)


def zeros(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A tensor filled with zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A tensor filled with ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """Zeros in the shape and, unless given, the dtype of `x`, in SBUF unless given."""
    return zeros(x.shape, dtype or x.dtype, buffer or MemoryRegion.sbuf, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = "") -> NkiTensor:
    """An unwritten tensor in the shape and, unless given, the dtype and buffer of `x`."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


@cache
def _fill(call: str) -> Callable[..., NkiInstruction]:
    """Constants reach HBM by DMA."""

    def step(dst: NkiTensor, values: Any) -> Step:
        array = np.asarray(values)
        if array.dtype.kind == "f" and array.dtype.itemsize == 8:
            array = array.astype(np.float32)
        return Step("dma", (dst,), (), lambda: dst.write(np.broadcast_to(array, dst.shape)))

    step.__name__ = step.__qualname__ = call
    return instruction(step, namespace="nl")


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared HBM with the values of a NumPy array, or of the `.npy` file at a path.

    Raises:
        NkiError: the constant is neither, or another one on the other core: they share it.
    """
    if isinstance(constant, (str, os.PathLike)):
        constant = np.load(constant)
    if not isinstance(constant, np.ndarray):
        raise NkiError(
            f"takes a NumPy array or the path of a .npy file, but got {type(constant).__name__}",
            op="nl.shared_constant",
        )
    tensor = ndarray(constant.shape, constant.dtype, MemoryRegion.shared_hbm)
    if current().is_tracing:
        return tensor
    stored = tensor.dtype.storage
    values = (
        np.ascontiguousarray(constant).view(stored) if tensor.dtype.is_packed else constant.astype(stored, copy=False)
    )
    if not tensor.storage.is_complete:
        tensor.write(values)  # It comes with the program, not by an instruction.
    elif tensor.array.tobytes() != values.tobytes():
        raise NkiError("the two cores give different constants, but share one", op="nl.shared_constant")
    return tensor


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: NkiTensor | None = None) -> NkiTensor:
    """The identity matrix of `n` rows in SBUF; in `dst` where that is given."""
    dtype = _known(dtype) if dst is None else dst.dtype
    if dst is None:
        dst = ndarray((n, n), dtype)
    # Private, so that a core may ask for one alone: shared tensors are made by both cores, in the same order.
    constant = ndarray((n, n), dtype, MemoryRegion.private_hbm)
    if not current().is_tracing:
        constant.write(np.eye(n, dtype=np.float32))
    isa.dma_copy(dst=dst, src=constant)
    return dst


def random_seed(seed: NkiTensor) -> None:
    """Starts the sequence that `rand` draws from anew; `seed` is a tile of shape (1, 1) with a 32-bit number."""
    isa.set_rng_seed(seed)


def rand(shape: Sequence[int], dtype: Any, buffer: MemoryRegion = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    """A tensor of numbers from 0 to below 1, all equally likely."""
    tensor = ndarray(shape, dtype, buffer, name)
    if not tensor.dtype.is_float:
        raise NkiError(f"numbers from 0 to 1 are floats, not {tensor.dtype}: nisa.rng draws integers", op="nl.rand")
    tile = tensor if tensor.is_on_chip else ndarray(tensor.shape, tensor.dtype)
    bits = ndarray(tile.shape, "uint32")
    isa.rng(dst=bits)
    # As many bits as float32 holds exactly, so that none is rounded up to 1.
    isa.tensor_scalar(dst=bits, data=bits, op0=OPERATORS["right_shift"], operand0=8)
    isa.tensor_scalar(dst=tile, data=bits, op0=OPERATORS["multiply"], operand0=2.0**-24)
    if tile is not tensor:
        isa.dma_copy(dst=tensor, src=tile)
    return tensor


def _known(dtype: Any) -> DType:
    try:
        return as_dtype(dtype)
    except ValueError as error:
        raise NkiError(str(error)) from None
