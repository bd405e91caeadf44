"""Reductions: along the free axes on the Vector engine, across partitions on GpSimd."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import convert_bits
from ..errors import NkiError
from ..instruction import Step, instruction
from ..tensor import NkiTensor
from .operands import integers_only, on_chip, operator


@instruction
def tensor_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, axis: int | Sequence[int], negate: bool = False, keepdims: bool = False
) -> Step:
    """`dst = op` over the last free axes of `data`, negated if asked."""
    on_chip(dst, data)
    op = operator(op, "op", reduces=True)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = sorted(one + data.ndim if one < 0 else one for one in given)
    if not axes or axes != list(range(data.ndim - len(axes), data.ndim)) or axes[0] == 0:
        raise NkiError(
            f"axis={axis!r}: the axes that are reduced are the last ones, never the partition, of {data.describe()}"
        )
    kept = data.shape[: axes[0]]
    if dst.shape[0] != data.shape[0] or dst.size != int(np.prod(kept)):
        raise NkiError(
            f"{list(data.shape)} without its last {len(axes)} axes is {list(kept)}, but dst is {dst.describe()}"
        )
    if op.is_bitwise:
        integers_only(dst, data)
        if negate:
            raise NkiError(f"negate=True with {op!r}: bitwise results are not negated")

    def reduce() -> None:
        if op.is_bitwise:
            dst.write(convert_bits(op.reduce(data.read().reshape(*kept, -1)), dst.dtype))
            return
        result = op.reduce(data.read_float32().reshape(*kept, -1))
        dst.write(-result if negate else result)

    return Step("vector", (dst,), (data,), reduce)


PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


@instruction
def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor) -> Step:
    """`dst[0] = op` over the partitions of `data`."""
    on_chip(dst, data)
    op = operator(op, "op", reduces=True)
    if op.name not in PARTITION_REDUCTIONS:
        raise NkiError(f"op={op!r}: across partitions there are {', '.join(PARTITION_REDUCTIONS)}")
    if dst.shape[0] != 1 or dst.size != data.free_size:
        raise NkiError(f"the result has one partition of {data.free_size} elements, but dst is {dst.describe()}")
    if op.is_bitwise:
        integers_only(dst, data)

    def reduce() -> None:
        if op.is_bitwise:
            dst.write(convert_bits(op.reduce(data.read().reshape(data.shape[0], -1), axis=0), dst.dtype))
        else:
            dst.write(op.reduce(data.read_float32(), axis=0)[None])

    return Step("gpsimd", (dst,), (data,), reduce)
