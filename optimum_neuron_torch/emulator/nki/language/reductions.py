"""Reductions along the free dimensions of a tile, and what is made of them: softmax, rms_norm.

Sums are float32 whatever the tile's dtype; the result is cast once, at the end.
"""

import math
from collections.abc import Sequence
from typing import Any

from .. import isa
from ..dtypes import DType, float32
from ..errors import NkiError
from ..isa.reductions import trailing_axes
from ..operators import OPERATORS, Operator
from ..tensor import NkiTensor
from .math import apply, check_tile, new_tile
from .promotion import result_dtype


Axes = int | Sequence[int]


def sum(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The sum over the last free dimension, or the last several."""
    return _reduced(OPERATORS["add"], "nl.sum", x, axis, result_dtype(dtype, x), keepdims)


def max(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The largest element over the last free dimension, or the last several."""
    return _reduced(OPERATORS["maximum"], "nl.max", x, axis, result_dtype(dtype, x), keepdims)


def min(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The smallest element over the last free dimension, or the last several."""
    return _reduced(OPERATORS["minimum"], "nl.min", x, axis, result_dtype(dtype, x), keepdims)


def prod(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The product over the last free dimension, or the last several."""
    return _reduced(OPERATORS["multiply"], "nl.prod", x, axis, result_dtype(dtype, x), keepdims)


def all(x: NkiTensor, axis: Axes, dtype: Any = None) -> NkiTensor:
    """1 where every element over the last free dimension, or the last several, is not zero; else 0."""
    return _reduced(OPERATORS["logical_and"], "nl.all", x, axis, result_dtype(dtype, x), False)


def mean(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over the last free dimension, or the last several."""
    return _mean("nl.mean", x, axis, result_dtype(dtype, x), keepdims)


def var(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The variance (divided by the number of elements) over the last free dimension, or the last several.

    The result keeps the reduced dimensions whatever `keepdims` says, as NKI documents.
    """
    average = _mean("nl.var", x, axis, float32, True)
    centred = apply(OPERATORS["subtract"], (x, average), float32)
    return _mean("nl.var", apply(OPERATORS["square"], (centred,)), axis, result_dtype(dtype, x), True)


def softmax(x: NkiTensor, axis: Axes = -1, dtype: Any = None) -> NkiTensor:
    """exp(x) over its sum along the last free dimension, or the last several."""
    highest = _reduced(OPERATORS["maximum"], "nl.softmax", x, axis, float32, True)
    powers = apply(OPERATORS["exp"], (apply(OPERATORS["subtract"], (x, highest), float32),))
    total = _reduced(OPERATORS["add"], "nl.softmax", powers, axis, float32, True)
    return apply(OPERATORS["multiply"], (powers, apply(OPERATORS["reciprocal"], (total,))), result_dtype(dtype, x))


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axes,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """x / sqrt(sum(x**2) / n + epsilon) * w, with the sum along `axis`, computed in `compute_dtype` or float32."""
    if n <= 0:
        raise NkiError(f"n={n!r} is the number of values that the mean is of, at least 1", op="nl.rms_norm")
    inner = result_dtype(compute_dtype or float32, x)
    squares = apply(OPERATORS["square"], (x,), inner)
    total = _reduced(OPERATORS["add"], "nl.rms_norm", squares, axis, float32, True)
    mean_square = new_tile(total.shape, float32)
    isa.tensor_scalar(
        dst=mean_square,
        data=total,
        op0=OPERATORS["multiply"],
        operand0=1.0 / n,
        op1=OPERATORS["add"],
        operand1=float(epsilon),
    )
    normal = apply(OPERATORS["multiply"], (x, apply(OPERATORS["rsqrt"], (mean_square,))), inner)
    return apply(OPERATORS["multiply"], (normal, w), result_dtype(dtype, x))


def _mean(call: str, x: NkiTensor, axis: Axes, dtype: DType, keepdims: bool) -> NkiTensor:
    axes = _trailing(call, x, axis)
    total = _reduced(OPERATORS["add"], call, x, axes, float32, keepdims)
    count = math.prod(x.shape[a] for a in axes)
    return apply(OPERATORS["divide"], (total, float(count)), dtype)


def _reduced(op: Operator, call: str, x: NkiTensor, axis: Axes, dtype: DType, keepdims: bool) -> NkiTensor:
    axes = _trailing(call, x, axis)
    kept = x.shape[: axes[0]]
    # On chip a tile has a free dimension even where all were reduced.
    shape = (*kept, *(1 for _ in axes)) if keepdims or len(kept) == 1 and len(axes) == 1 else kept
    dst = new_tile(shape if len(shape) > 1 else (*shape, 1), dtype)
    isa.tensor_reduce(dst=dst, op=op, data=x, axis=axes, keepdims=keepdims)
    return dst


def _trailing(call: str, x: NkiTensor, axis: Axes) -> tuple[int, ...]:
    """The axes, which must be the last dimensions of the tile and leave out the partition."""
    check_tile(call, x)
    try:
        return trailing_axes(axis, x)
    except NkiError as error:
        error.op = call
        raise
