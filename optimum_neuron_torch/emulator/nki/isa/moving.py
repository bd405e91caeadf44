"""Copies and constants within the core."""

from typing import Any

import numpy as np

from ..dtypes import to_float32
from ..errors import NkiError
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import choose_engine, needs_generation, on_chip, same_elements


@instruction
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Any = engines.unknown) -> Step:
    """`dst = src`; bit for bit where the dtypes agree, else through float32."""
    on_chip(dst, src)
    same_elements(dst, src)
    if engine is engines.scalar:
        needs_generation(3, "tensor_copy on the Scalar engine")
    name = choose_engine(engine, ("vector", "scalar", "gpsimd"), dst, src)

    def copy() -> None:
        values = src.read()
        dst.write(values if src.dtype == dst.dtype else to_float32(values, src.dtype))

    return Step(name, (dst,), (src,), copy)


@instruction
def memset(dst: NkiTensor, value: Any, engine: Any = engines.unknown) -> Step:
    """Fills `dst` with a constant."""
    on_chip(dst)
    name = choose_engine(engine, ("vector", "gpsimd"), dst)
    if isinstance(value, NkiTensor) or not isinstance(value, (int, float, np.number, np.bool_)):
        raise NkiError(f"value is a number known before the kernel runs, but is {value!r}")
    if dst.dtype.is_packed and value != 0:
        raise NkiError(f"{dst.dtype} can be filled with 0 alone, not with {value!r}")

    def fill() -> None:
        if dst.dtype.is_packed:
            dst.write(np.zeros(dst.shape, dst.dtype.storage))
        else:
            kind = np.int64 if dst.dtype.is_integer and float(value).is_integer() else np.float32
            dst.write(np.full(dst.shape, value, kind))

    return Step(name, (dst,), (), fill)
