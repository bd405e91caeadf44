"""Finding the largest elements and where elements are."""

from typing import Any

import numpy as np

from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .operands import constant, has_dtype, in_buffer, needs_generation, on_chip, same_elements


_SEARCHED = (8, 16384)
_FOUND = 8


@instruction
def max8(dst: NkiTensor, src: NkiTensor) -> Step:
    """The 8 largest elements of each partition, the largest first."""
    on_chip(dst, src)
    _check_searched(src, "src")
    if dst.ndim != 2 or dst.shape[0] != src.shape[0] or dst.free_size != _FOUND:
        raise NkiError(f"dst has shape [{src.shape[0]}, 8], but is {dst.describe()}")

    def find() -> None:
        values = src.read_float32()
        if values.shape[1] > _FOUND:
            values = np.partition(values, values.shape[1] - _FOUND, axis=1)[:, -_FOUND:]
        dst.write(np.sort(values, axis=1)[:, ::-1])

    return Step("vector", (dst,), (src,), find)


def _check_searched(data: NkiTensor, role: str) -> None:
    low, high = _SEARCHED
    if not low <= data.free_size <= high:
        raise NkiError(
            f"{role} has {data.free_size} elements per partition: {low} to {high} can be searched ({data.describe()})"
        )
    if data.ndim > 3:
        raise NkiError(f"{role} has up to 3 dimensions, but is {data.describe()}: flatten_dims joins some")


def _check_values(vals: NkiTensor, data: NkiTensor) -> None:
    if vals.shape[0] != data.shape[0] or vals.free_size != _FOUND or vals.ndim > 3:
        raise NkiError(f"vals has shape [{data.shape[0]}, 8], but is {vals.describe()}")


def _check_indices(indices: NkiTensor, data: NkiTensor, role: str) -> None:
    has_dtype(indices, role, "uint16", "uint32")
    if indices.ndim != 2 or indices.shape[0] != data.shape[0] or indices.free_size != _FOUND:
        raise NkiError(f"{role} has shape [{data.shape[0]}, 8], but is {indices.describe()}")


@instruction
def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor) -> Step:
    """Where in `data` each of 8 values is; the second of two equal values is its second occurrence, and so on.

    What is not found has all bits set.
    """
    on_chip(dst, data, vals)
    _check_searched(data, "data")
    _check_values(vals, data)
    _check_indices(dst, data, "dst")

    def find() -> None:
        dst.write(_matches(data.read_float32(), vals.read_float32(), range(_FOUND), dst.dtype.storage)[0])

    return Step("vector", (dst,), (data, vals), find)


def _matches(data: np.ndarray, wanted: np.ndarray, order: range, storage: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """For each of the values, in this order, the first element equal to it that none before it took.

    Returns the indices, all bits set for what was not found, and which elements were taken.
    """
    indices = np.full(wanted.shape, -1, np.int64).astype(storage)
    is_taken = np.zeros(data.shape, bool)
    rows = np.arange(len(data))
    for column in order:
        is_match = data == wanted[:, column : column + 1]
        is_match &= ~is_taken
        first = is_match.argmax(axis=1)
        is_found = is_match[rows, first]
        indices[is_found, column] = first[is_found]
        is_taken[rows[is_found], first[is_found]] = True
    return indices, is_taken


@instruction
def nc_match_replace8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: Any, dst_idx: NkiTensor | None = None
) -> Step:
    """`data` with `imm` in place of the first occurrence of each of 8 values, and where those were.

    The values are gone through from the last to the first, so the last of equal values gets the first occurrence.
    """
    on_chip(dst, data, vals)
    same_elements(dst, data)
    _check_searched(data, "data")
    _check_values(vals, data)
    constant(imm, "imm")
    if dst_idx is not None:
        on_chip(dst_idx)
        _check_indices(dst_idx, data, "dst_idx")
    storage = np.dtype(np.uint32) if dst_idx is None else dst_idx.dtype.storage

    def replace() -> None:
        values = data.read_float32()
        indices, is_taken = _matches(values, vals.read_float32(), range(_FOUND - 1, -1, -1), storage)
        dst.write(np.where(is_taken, np.float32(imm), values))
        if dst_idx is not None:
            dst_idx.write(indices)

    written = (dst,) if dst_idx is None else (dst, dst_idx)
    return Step("vector", written, (data, vals), replace)


_GPSIMD_LANES = 16  # partitions of one of GpSimd's eight cores


@instruction
def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: Any = 0, padding_val: Any = -1) -> Step:
    """The positions of the elements that are not zero, padding, and their number, on every 16th partition."""
    needs_generation(3, "nonzero_with_count")
    on_chip(dst, src)
    for tensor, role in ((dst, "dst"), (src, "src")):
        in_buffer(tensor, MemoryRegion.sbuf, role=f"{role} (GpSimd cannot access PSUM)")
    has_dtype(src, "src", "float32", "int32")
    has_dtype(dst, "dst", "int32")
    if dst.shape[0] != src.shape[0] or dst.free_size != src.free_size + 1:
        raise NkiError(
            f"dst has as many partitions as src and one element more in each, for the number: {src.describe()} needs "
            f"[{src.shape[0]}, {src.free_size + 1}], but dst is {dst.describe()}"
        )
    for value, role in ((index_offset, "index_offset"), (padding_val, "padding_val")):
        constant(value, role, is_integer=True)
    first = -src.start_partition % _GPSIMD_LANES

    def find() -> None:
        for partition in range(first, src.shape[0], _GPSIMD_LANES):
            found = np.flatnonzero(src[partition].read()) + index_offset
            row = np.full(dst.free_size, padding_val, np.int32)
            row[: found.size] = found
            row[-1] = found.size
            dst[partition].write(row)

    return Step("gpsimd", (dst,), (src,), find)


@instruction
def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: Any, sorted: bool = False) -> Step:
    """The k largest of the `n` elements that each 16 partitions hold, and where they are among those.

    Element i of a group of 16 partitions lies in partition i % 16, column i // 16; result j likewise, in the first
    columns of `val_dst` and `idx_dst`, whose free size is k. Columns beyond stay as they are. The smallest of the k
    comes first; without `sorted` nothing should rely on that.
    """
    on_chip(val_dst, idx_dst, src)
    for tensor, role, dtype in (
        (val_dst, "val_dst", "bfloat16"),
        (idx_dst, "idx_dst", "uint32"),
        (src, "src", "bfloat16"),
    ):
        in_buffer(tensor, MemoryRegion.sbuf, role=f"{role} (GpSimd cannot access PSUM)")
        has_dtype(tensor, role, dtype)
    partitions, k = src.shape[0], val_dst.free_size
    if partitions % _GPSIMD_LANES:
        raise NkiError(f"src has {partitions} partitions, no multiple of {_GPSIMD_LANES} ({src.describe()})")
    if val_dst.shape[0] != partitions:
        raise NkiError(f"val_dst and src have as many partitions, but {val_dst.shape[0]} and {partitions}")
    same_elements(val_dst, idx_dst)
    n = int(constant(n, "n", is_integer=True))
    if not 8 <= n < 1 << 16:
        raise NkiError(f"n={n}: 8 to {(1 << 16) - 1} elements can be searched")
    if not 1 <= k < 1 << 15 or k > n:
        raise NkiError(f"val_dst asks for k={k} elements: 1 to {(1 << 15) - 1}, and no more than n={n}, can be found")
    if src.free_size < -(-n // _GPSIMD_LANES):
        raise NkiError(f"n={n} elements take {-(-n // _GPSIMD_LANES)} columns, and src has {src.free_size}")
    groups, columns = partitions // _GPSIMD_LANES, -(-k // _GPSIMD_LANES)

    def find() -> None:
        snakes = src.read_float32().reshape(groups, _GPSIMD_LANES, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
        # Of equal elements the first ones are found.
        order = np.argsort(-snakes, axis=1, kind="stable")[:, :k][:, ::-1]
        is_result = _as_snake(np.ones((groups, k), bool), columns, fill=False)
        for dst, results in ((val_dst, np.take_along_axis(snakes, order, axis=1)), (idx_dst, order)):
            flat = dst.reshape((partitions, k))[:, :columns]
            flat.write_where(is_result, _as_snake(results, columns, fill=0))

    return Step("gpsimd", (val_dst, idx_dst), (src,), find)


def _as_snake(results: np.ndarray, columns: int, fill: Any) -> np.ndarray:
    """(groups, k) as the partitions hold it: (16 * groups, columns)."""
    padded = np.full((len(results), columns * _GPSIMD_LANES), fill, results.dtype)
    padded[:, : results.shape[1]] = results
    return padded.reshape(len(results), columns, _GPSIMD_LANES).transpose(0, 2, 1).reshape(-1, columns)
