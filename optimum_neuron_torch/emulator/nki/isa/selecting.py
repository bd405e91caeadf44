"""Values chosen by position or by a predicate."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import to_float32
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..operators import OPERATORS
from ..registers import is_register
from ..tensor import NkiTensor
from .constants import reduce_cmd as reduce_cmds
from .operands import (
    accumulate,
    check_float32,
    check_per_partition,
    in_buffer,
    needs_generation,
    not_both_in_psum,
    on_chip,
    operator,
    per_partition,
    same_elements,
    tensors,
)


LOWEST = -3.4028235e38  # what the chip writes where a range excludes an element


@instruction
def iota(dst: NkiTensor, pattern: Sequence[Sequence[int]], offset: Any = 0, channel_multiplier: int = 0) -> Step:
    """`dst[p, i, j, ...] = offset + p * channel_multiplier + i * step_i + j * step_j + ...`, in 32-bit integers."""
    on_chip(dst)
    in_buffer(dst, MemoryRegion.sbuf, role="dst")
    _check_pattern(pattern, dst)

    def generate() -> None:
        dst.write(_affine(dst.shape[0], pattern, offset, channel_multiplier))

    return Step("gpsimd", (dst,), (), generate)


def _check_pattern(pattern: Sequence[Sequence[int]], dst: NkiTensor) -> None:
    if not 1 <= len(pattern) <= 4 or any(len(pair) != 2 for pair in pattern):
        raise NkiError(f"pattern is one to four [step, number] pairs, but is {pattern!r}")
    count = int(np.prod([number for _, number in pattern]))
    if count != dst.free_size:
        raise NkiError(f"pattern {pattern!r} makes {count} elements per partition, and dst is {dst.describe()}")


def _affine(partitions: int, pattern: Sequence[Sequence[int]], offset: Any, multiplier: int) -> np.ndarray:
    start = offset.number() if is_register(offset) else int(offset)
    values = np.int64(start)
    for step, number in pattern:
        values = np.add.outer(values, np.arange(number, dtype=np.int64) * int(step))
    per_partition_start = np.arange(partitions, dtype=np.int64)[:, None] * int(multiplier)
    return (per_partition_start + values.reshape(1, -1)).astype(np.int32)


@instruction
def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = OPERATORS["equal"],
    offset: Any = 0,
) -> Step:
    """`dst = on_true_tile` where `cmp_op(affine value, 0)`, as `iota` counts it, else `on_false_value`."""
    on_chip(dst, on_true_tile)
    in_buffer(dst, MemoryRegion.sbuf, role="dst")
    in_buffer(on_true_tile, MemoryRegion.sbuf, role="on_true_tile")
    same_elements(dst, on_true_tile)
    _check_pattern(pattern, dst)
    cmp_op = _comparison(cmp_op, "cmp_op")

    def select() -> None:
        keep = cmp_op.function(_affine(dst.shape[0], pattern, offset, channel_multiplier), 0) != 0
        dst.write(np.where(keep, on_true_tile.read_float32(), np.float32(on_false_value)))

    return Step("gpsimd", (dst,), (on_true_tile,), select)


def _comparison(op: Any, role: str) -> Any:
    found = operator(op, role)
    if not found.is_comparison:
        raise NkiError(f"{role}={found!r} compares nothing")
    return found


@instruction
def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = reduce_cmds.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = OPERATORS["maximum"],
    range_start: Any = 0,
    on_false_value: float = LOWEST,
) -> Step:
    """`dst = on_true_tile` where the column lies within bounds given per partition, else the lowest float32."""
    needs_generation(3, "range_select")
    on_chip(dst, on_true_tile, *tensors(reduce_res))
    same_elements(dst, on_true_tile)
    partitions = dst.shape[0]
    for bound, role in ((bound0, "bound0"), (bound1, "bound1")):
        check_per_partition(bound, partitions, role)
        check_float32(bound, role)
    first, second = _comparison(comp_op0, "comp_op0"), _comparison(comp_op1, "comp_op1")
    reduction = operator(reduce_op, "reduce_op", reduces=True)
    if np.float32(on_false_value) != np.float32(LOWEST):
        raise NkiError(f"on_false_value={on_false_value!r}: the chip writes {LOWEST}, the lowest float32")

    def select() -> None:
        start = range_start.number() if is_register(range_start) else range_start
        columns = np.arange(on_true_tile.free_size, dtype=np.float32)[None] + np.float32(start)
        keep = first.function(columns, per_partition(bound0, partitions, "bound0")) != 0
        keep &= second.function(columns, per_partition(bound1, partitions, "bound1")) != 0
        values = np.where(keep, on_true_tile.read_float32(), np.float32(LOWEST))
        dst.write(values)
        accumulate("vector", reduce_cmd, reduction, values, reduce_res)

    reads = (on_true_tile, *tensors(bound0, bound1))
    return Step("vector", (dst, *tensors(reduce_res)), reads, select)


@instruction
def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = reduce_cmds.idle,
    reduce_op: Any = OPERATORS["maximum"],
    reverse_pred: bool = False,
) -> Step:
    """`dst = on_true` where `predicate`, else `on_false`, and a maximum of it along the free axes."""
    on_chip(dst, predicate, on_true, *tensors(reduce_res))
    same_elements(dst, predicate, on_true)
    if isinstance(on_false, NkiTensor) and on_false.size != on_false.shape[0]:
        same_elements(dst, on_false)
    else:
        check_per_partition(on_false, dst.shape[0], "on_false")
    not_both_in_psum(predicate, on_true, "predicate and on_true")
    reduction = operator(reduce_op, "reduce_op", reduces=True)

    def select() -> None:
        keep = predicate.read_float32() != 0
        other = on_false.read_float32() if isinstance(on_false, NkiTensor) else np.float32(on_false)
        values = np.where(~keep if reverse_pred else keep, on_true.read_float32(), other)
        dst.write(values)
        accumulate("vector", reduce_cmd, reduction, values, reduce_res)

    return Step("vector", (dst, *tensors(reduce_res)), (predicate, on_true, *tensors(on_false)), select)


@instruction
def tensor_copy_predicated(dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False) -> Step:
    """`dst = src` where `predicate`; the other elements of `dst` stay."""
    on_chip(dst, predicate, *tensors(src))
    same_elements(dst, predicate, *tensors(src))
    if predicate.dtype not in ("uint8", "uint16", "uint32"):
        raise NkiError(f"predicate is uint8, uint16 or uint32, but is {predicate.describe()}")
    if isinstance(src, NkiTensor):
        not_both_in_psum(src, predicate, "src and predicate")
        if src.dtype != dst.dtype:
            raise NkiError(f"src and dst have one dtype, but are {src.dtype} and {dst.dtype}")

    def copy() -> None:
        keep = predicate.read().reshape(dst.shape) != 0
        keep = ~keep if reverse_pred else keep
        before = dst.read()
        if isinstance(src, NkiTensor):
            dst.write(np.where(keep, src.read().reshape(dst.shape), before))
        else:
            dst.write(np.where(keep, np.float32(src), to_float32(before, dst.dtype)))

    return Step("vector", (dst,), (dst, predicate, *tensors(src)), copy)


@instruction
def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor) -> Step:
    """For each element the start and the end of its segment; (n, -1) for padding, whose id is 0."""
    on_chip(dst, segment_ids)
    length = segment_ids.free_size
    for tensor in (dst, segment_ids):
        if tensor.dtype not in ("float32", "int32"):
            raise NkiError(f"segment_ids and dst are float32 or int32, not {tensor.describe()}")
    if segment_ids.shape[0] != 1 or dst.shape[0] != 1 or dst.size != 2 * length:
        raise NkiError(
            f"one partition of n elements gives one of (2, n), not {list(segment_ids.shape)} {list(dst.shape)}"
        )

    def find() -> None:
        ids = segment_ids.read().reshape(-1)
        begins = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        ends = np.append(begins[1:], length)
        which = np.cumsum(np.isin(np.arange(length), begins)) - 1
        starts, stops = begins[which], ends[which]
        is_padding = ids == 0
        starts, stops = np.where(is_padding, length, starts), np.where(is_padding, -1, stops)
        dst.write(np.stack([starts, stops]).astype(np.int32))

    return Step("gpsimd", (dst,), (segment_ids,), find)
