"""Copies and constants within the core."""

from typing import Any

import numpy as np

from ..core import warn_once
from ..dtypes import convert
from ..errors import NkiError
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import choose_engine, constant, needs_generation, on_chip, same_elements


@instruction
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Any = engines.unknown) -> Step:
    """`dst = src`; bit for bit where the dtypes agree, else through float32."""
    on_chip(dst, src)
    same_elements(dst, src)
    if engine is engines.scalar:
        needs_generation(3, "tensor_copy on the Scalar Engine (which nisa.activation with op=nl.copy uses too)")
    unit = choose_engine(engine, ("vector", "scalar", "gpsimd"), dst, src)

    return Step(unit, (dst,), (src,), lambda: dst.write(src.read_for(dst)))


@instruction
def memset(dst: NkiTensor, value: Any, engine: Any = engines.unknown) -> Step:
    """Fills `dst` with a constant of its kind: integers for integers."""
    on_chip(dst)
    constant(value, "value")
    unit = choose_engine(engine, ("vector", "gpsimd"), dst)
    filler = _element(dst, value)

    def fill() -> None:
        if dst.is_indirect():
            dst.write(np.full(dst.shape, filler))
        else:
            dst.array[...] = filler
            dst.note_write()

    return Step(unit, (dst,), (), fill)


def _element(dst: NkiTensor, value: Any) -> Any:
    """The value as one element of `dst`."""
    dtype = dst.dtype
    if dtype.is_packed:
        if value != 0:
            raise NkiError(f"value={value!r}: packed elements ({dtype}) can only be set to 0")
        return np.zeros((), dtype.storage)
    if dtype.is_integer:
        if not float(value).is_integer():
            raise NkiError(f"value={value!r} is no integer, and dst is {dst.describe()}")
        if not isinstance(value, (int, np.integer)):
            warn_once(f"memset of {dtype} with value={value!r}: NKI takes integers for integers, write {int(value)}")
        if not dtype.min <= value <= dtype.max:
            raise NkiError(f"value={value!r} does not fit into {dtype}, which goes from {dtype.min} to {dtype.max}")
        return np.array(int(value), dtype.storage)
    if dtype == "bool" and value not in (0, 1):
        raise NkiError(f"value={value!r} is no boolean, and dst is {dst.describe()}")
    return convert(np.float32(value), dtype)
