"""Copies and constants within the core."""

from typing import Any

import numpy as np

from ..dtypes import to_float32
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import on_chip, same_elements


@instruction
def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Any = engines.unknown) -> Step:
    """`dst = src`; bit for bit where the dtypes agree, else through float32."""
    on_chip(dst, src)
    same_elements(dst, src)

    def copy() -> None:
        values = src.read()
        dst.write(values if src.dtype == dst.dtype else to_float32(values, src.dtype))

    return Step("vector", (dst,), (src,), copy)


@instruction
def memset(dst: NkiTensor, value: Any, engine: Any = engines.unknown) -> Step:
    """Fills `dst` with a constant."""
    on_chip(dst)
    return Step("vector", (dst,), (), lambda: dst.write(np.full(dst.shape, value, np.float32)))
