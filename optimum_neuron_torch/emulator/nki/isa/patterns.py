"""Numbers that follow from positions: iota, and selecting by an affine expression of the position."""

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import convert, to_float32
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..operators import OPERATORS
from ..tensor import NkiTensor
from .operands import constant, has_dtype, in_buffer, on_chip, operator_of, same_elements


_EQUAL = OPERATORS["equal"]
_WORD = (-(2**31), 2**31 - 1)


@instruction
def iota(dst: NkiTensor, pattern: Any, offset: Any = 0, channel_multiplier: Any = 0) -> Step:
    """`dst[p, i] = offset + p * channel_multiplier + sum(index * step)`, in 32-bit integers, on GpSimd."""
    on_chip(dst)
    in_buffer(dst, MemoryRegion.sbuf, role="dst (GpSimd cannot access PSUM)")
    numbers = _affine_arguments(dst, pattern, offset, channel_multiplier)
    return Step("gpsimd", (dst,), (), lambda: dst.write(_affine(*numbers).astype(np.int32)))


@instruction
def affine_select(
    dst: NkiTensor,
    pattern: Any,
    channel_multiplier: Any,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = _EQUAL,
    offset: Any = 0,
) -> Step:
    """`on_true_tile` where `cmp_op` holds of an affine expression of the position and 0, else `on_false_value`."""
    on_chip(dst, on_true_tile)
    in_buffer(dst, MemoryRegion.sbuf, role="dst (GpSimd cannot access PSUM)")
    in_buffer(on_true_tile, MemoryRegion.sbuf, role="on_true_tile (GpSimd cannot access PSUM)")
    same_elements(dst, on_true_tile)
    constant(on_false_value, "on_false_value")
    cmp_op = operator_of(cmp_op, "cmp_op")
    if not cmp_op.is_comparison:
        raise NkiError(f"cmp_op={cmp_op} is no comparison: use nl.equal, nl.greater_equal or the like")
    numbers = _affine_arguments(dst, pattern, offset, channel_multiplier)

    def select() -> None:
        chosen = _predicate(cmp_op.function, *numbers)
        rejected = np.float32(on_false_value)
        values = on_true_tile.read()
        if on_true_tile.dtype == dst.dtype:
            rejected = convert(rejected, dst.dtype)
        else:
            values = to_float32(values, on_true_tile.dtype)
        dst.write(np.where(chosen, values.reshape(chosen.shape), rejected))

    return Step("gpsimd", (dst,), (on_true_tile,), select)


def _affine_arguments(
    dst: NkiTensor, pattern: Any, offset: Any, channel_multiplier: Any
) -> tuple[tuple[tuple[int, int], ...], int, int, int]:
    """Pattern, offset, multiplier and number of partitions, checked."""
    try:
        steps = tuple((operator.index(step), operator.index(count)) for step, count in pattern)
    except (TypeError, ValueError):
        raise NkiError(f"pattern is a list of [step, number] pairs of integers, but got {pattern!r}") from None
    if not 1 <= len(steps) <= 4:
        raise NkiError(f"pattern has {len(steps)} dimensions: one to four are possible")
    total = 1
    for _, count in steps:
        total *= count
    if total != dst.free_size or min(count for _, count in steps) < 1:
        raise NkiError(
            f"pattern {[list(pair) for pair in steps]} has {total} elements, and dst {dst.free_size} per partition: "
            "they must be the same"
        )
    offset = int(constant(offset, "offset", is_integer=True))
    multiplier = int(constant(channel_multiplier, "channel_multiplier", is_integer=True))
    for number, role in ((offset, "offset"), (multiplier, "channel_multiplier"), *((s, "step") for s, _ in steps)):
        if not _WORD[0] <= number <= _WORD[1]:
            raise NkiError(f"{role} {number} does not fit into 32 bits")
    return steps, offset, multiplier, dst.shape[0]


def _affine(steps: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int) -> np.ndarray:
    """The expression's values, (partitions, elements), as 64-bit integers that hold no more than 32 bits."""
    row = np.zeros(1, np.int64)
    for step, count in steps:
        row = (row[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    values = row + (offset + np.arange(partitions, dtype=np.int64) * multiplier)[:, None]
    return values.astype(np.int32).astype(np.int64)


@lru_cache(maxsize=32)
def _predicate(compare: Callable[..., np.ndarray], *numbers: Any) -> np.ndarray:
    """Where the comparison with 0 holds. Attention asks for the same few masks over and over."""
    chosen = compare(_affine(*numbers), 0).astype(bool)
    chosen.flags.writeable = False
    return chosen


@instruction
def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor) -> Step:
    """For each element where its segment, a run of equal ids, starts and where it ends; n and -1 where the id is 0."""
    on_chip(dst, segment_ids)
    for tensor, role in ((dst, "dst"), (segment_ids, "segment_ids")):
        in_buffer(tensor, MemoryRegion.sbuf, role=f"{role} (GpSimd cannot access PSUM)")
        has_dtype(tensor, role, "float32", "int32")
    length = segment_ids.free_size
    if segment_ids.shape[0] != 1 or dst.shape[0] != 1 or dst.free_size != 2 * length:
        raise NkiError(
            f"segment_ids has one partition, and dst shape [1, 2, {length}] for its {length} elements, but they are "
            f"{segment_ids.describe()} and {dst.describe()}"
        )

    def find() -> None:
        ids = segment_ids.read().reshape(-1)
        if (ids < 0).any() or (ids != np.floor(ids)).any():
            raise NkiError(f"segment ids are integers from 0 on, but there is {ids[(ids < 0) | (ids != ids // 1)][0]}")
        starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
        segment = np.repeat(np.arange(len(starts)), np.diff(starts, append=length))
        bounds = np.stack((starts, np.append(starts[1:], length)))[:, segment]
        bounds[:, ids == 0] = [[length], [-1]]
        dst.write(bounds)

    return Step("gpsimd", (dst,), (segment_ids,), find)
