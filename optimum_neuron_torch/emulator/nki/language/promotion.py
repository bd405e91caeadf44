"""Which dtype a function on tiles gives where the kernel names none."""

from typing import Any

import numpy as np

from ..dtypes import DType, as_dtype, bfloat16, bool_, float32, int16, int32, tfloat32, uint8
from ..errors import NkiError
from ..tensor import NkiTensor


def result_dtype(dtype: Any, *operands: Any) -> DType:
    """`dtype` if it is given, else what the operands' dtypes promote to.

    Between tiles: a float wins over an integer, the wider float or integer over the narrower; where neither holds the
    other's values, the narrowest type that holds both, which is float32 for int32 and uint32. A number takes the
    tile's dtype, but a fraction makes float32 of an integer tile.
    """
    if dtype is not None:
        try:
            return as_dtype(dtype)
        except ValueError as error:
            raise NkiError(str(error)) from None
    result = None
    for operand in operands:
        if isinstance(operand, NkiTensor):
            result = operand.dtype if result is None else promote(result, operand.dtype)
    if any(isinstance(operand, (float, np.floating)) and operand % 1 for operand in operands):
        return result if result.is_float else float32
    return result


def promote(first: DType, second: DType) -> DType:
    if first is second:
        return first
    if first.is_packed or second.is_packed:
        raise NkiError(f"{first} and {second}: packed elements are only for nc_matmul_mx")
    first, second = (uint8 if dtype is bool_ else dtype for dtype in (first, second))
    if first.is_float != second.is_float:
        return first if first.is_float else second
    return _wider_float(first, second) if first.is_float else _wider_integer(first, second)


def _wider_float(first: DType, second: DType) -> DType:
    if first is second:
        return first
    if first.itemsize == second.itemsize == 4:  # float32 and tfloat32
        return float32
    if first.itemsize == second.itemsize:
        return bfloat16 if first.itemsize == 1 else float32
    wider = first if first.itemsize > second.itemsize else second
    return float32 if wider is tfloat32 else wider


def _wider_integer(first: DType, second: DType) -> DType:
    for wider, other in ((first, second), (second, first)):
        if wider.min <= other.min and other.max <= wider.max:
            return wider
    for dtype in (int16, int32):
        if all(dtype.min <= given.min and given.max <= dtype.max for given in (first, second)):
            return dtype
    return float32  # The engines have no 64-bit integers.
