"""Largest values and where they are."""

import numpy as np

from ..dtypes import convert
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .operands import in_buffer, needs_generation, on_chip, same_elements, tensors


EIGHT = 8
LONGEST = 16384  # elements per partition: API reference, nki.isa.max8


def _check_searched(data: NkiTensor) -> None:
    if not EIGHT <= data.free_size <= LONGEST:
        raise NkiError(f"{EIGHT} to {LONGEST} elements per partition can be searched, not {data.describe()}")


def _check_eight(tensor: NkiTensor, role: str, partitions: int) -> None:
    if tensor.free_size != EIGHT or tensor.shape[0] != partitions:
        raise NkiError(f"{role} has {partitions} partitions of {EIGHT} elements, but is {tensor.describe()}")


@instruction
def max8(dst: NkiTensor, src: NkiTensor) -> Step:
    """The 8 largest values of each partition, in descending order."""
    on_chip(dst, src)
    _check_searched(src)
    _check_eight(dst, "dst", src.shape[0])

    def search() -> None:
        values = src.read_float32()
        largest = np.partition(values, values.shape[1] - EIGHT, axis=1)[:, -EIGHT:]
        dst.write(np.ascontiguousarray(np.sort(largest, axis=1)[:, ::-1]))

    return Step("vector", (dst,), (src,), search)


@instruction
def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor) -> Step:
    """Where each of 8 values first occurs in each partition; all ones where it does not.

    A value that is given several times is found at its successive positions.
    """
    on_chip(dst, data, vals)
    _check_searched(data)
    _check_eight(vals, "vals", data.shape[0])
    _check_eight(dst, "dst", data.shape[0])
    if dst.dtype not in ("uint16", "uint32"):
        raise NkiError(f"dst is uint16 or uint32, but is {dst.describe()}")

    def search() -> None:
        found = _match(data.read_float32(), vals.read_float32(), range(EIGHT))
        dst.write(np.where(found < 0, dst.dtype.max, found))

    return Step("vector", (dst,), (data, vals), search)


def _match(data: np.ndarray, vals: np.ndarray, order: range) -> np.ndarray:
    """For each of `vals`, taken in `order`, its first position in `data` that no earlier one took; -1 for none."""
    found = np.full(vals.shape, -1, np.int64)
    is_free = np.ones(data.shape, bool)
    rows = np.arange(len(data))
    for column in order:
        matches = (data == vals[:, column, None]) & is_free
        position = matches.argmax(1)
        is_found = matches[rows, position]
        found[:, column] = np.where(is_found, position, -1)
        is_free[rows[is_found], position[is_found]] = False
    return found


@instruction
def nc_match_replace8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None
) -> Step:
    """`data` with the first occurrence of each of 8 values replaced by `imm`; `dst_idx` gets their positions."""
    on_chip(dst, data, vals, *tensors(dst_idx))
    _check_searched(data)
    same_elements(dst, data)
    _check_eight(vals, "vals", data.shape[0])
    if dst_idx is not None:
        _check_eight(dst_idx, "dst_idx", data.shape[0])
        if dst_idx.dtype not in ("uint16", "uint32"):
            raise NkiError(f"dst_idx is uint16 or uint32, but is {dst_idx.describe()}")

    def replace() -> None:
        values = data.read_float32().copy()
        found = _match(values, vals.read_float32(), range(EIGHT - 1, -1, -1))
        rows, columns = np.nonzero(found >= 0)
        values[rows, found[rows, columns]] = np.float32(imm)
        dst.write(values)
        if dst_idx is not None:
            dst_idx.write(np.where(found < 0, dst_idx.dtype.max, found))

    return Step("vector", (dst, *tensors(dst_idx)), (data, vals), replace)


@instruction
def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1) -> Step:
    """Positions of what is not zero, padded, and their number last; in every 16th partition."""
    needs_generation(3, "nonzero_with_count")
    on_chip(dst, src)
    in_buffer(src, MemoryRegion.sbuf, role="src")
    in_buffer(dst, MemoryRegion.sbuf, role="dst")
    if src.dtype not in ("float32", "int32") or dst.dtype != "int32":
        raise NkiError(f"src is float32 or int32 and dst int32, but they are {src.dtype} and {dst.dtype}")
    if dst.shape[0] != src.shape[0] or dst.free_size != src.free_size + 1:
        raise NkiError(
            f"dst has one element per partition more than src, but they are {dst.describe()}, {src.describe()}"
        )

    def search() -> None:
        for row in range(0, src.shape[0], 16):
            positions = np.flatnonzero(src[row : row + 1].read().reshape(-1))
            result = np.full(src.free_size + 1, padding_val, np.int32)
            result[: len(positions)] = positions + index_offset
            result[-1] = len(positions)
            dst[row : row + 1].write(result)

    return Step("gpsimd", (dst,), (src,), search)


@instruction
def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int) -> Step:
    """The largest values, ascending, and where they are among the `n` elements that 16 partitions hold as a snake."""
    on_chip(val_dst, idx_dst, src)
    for tensor, role in ((val_dst, "val_dst"), (idx_dst, "idx_dst"), (src, "src")):
        in_buffer(tensor, MemoryRegion.sbuf, role=role)
    if val_dst.dtype != "bfloat16" or src.dtype != "bfloat16" or idx_dst.dtype != "uint32":
        raise NkiError("src and val_dst are bfloat16, and idx_dst is uint32")
    partitions, k = src.shape[0], val_dst.free_size
    if partitions % 16:
        raise NkiError(f"the partitions are a multiple of 16, not {partitions}")
    if not 8 <= n < 65536 or not 1 <= k < 32768 or k > n or src.free_size < -(-n // 16):
        raise NkiError(f"n={n} and k={k}: 8 <= n < 65536, 1 <= k < 32768, k <= n, and src holds n in 16 partitions")
    same_elements(val_dst, idx_dst)

    def search() -> None:
        values = src.read_float32().reshape(partitions // 16, 16, -1)
        snakes = values.transpose(0, 2, 1).reshape(partitions // 16, -1)[:, :n]
        order = np.argsort(-snakes, axis=1, kind="stable")[:, :k][:, ::-1]
        largest = np.take_along_axis(snakes, order, axis=1)
        val_dst.write(convert(np.repeat(largest, 16, axis=0), val_dst.dtype))
        idx_dst.write(np.repeat(order, 16, axis=0))

    return Step("gpsimd", (val_dst, idx_dst), (src,), search)
