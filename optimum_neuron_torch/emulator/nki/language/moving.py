"""Loads, stores, and tiles with other layouts: transposed, repeated, gathered, multiplied."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import isa
from ..dtypes import uint32
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..operators import OPERATORS
from ..tensor import NkiTensor
from .creation import ndarray
from .math import apply, check_tile, new_tile, repeated
from .promotion import result_dtype


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile of SBUF with the elements of a tensor in HBM."""
    _in_hbm("nl.load", src)
    dst = new_tile(src.shape, result_dtype(dtype, src))
    isa.dma_copy(dst=dst, src=src)
    return dst


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Writes a tile of SBUF to a tensor in HBM."""
    _in_hbm("nl.store", dst)
    isa.dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile of SBUF with the rows of a matrix in HBM as its columns."""
    _in_hbm("nl.load_transpose2d", src)
    if src.ndim != 2:
        raise NkiError(f"takes a matrix, but got {src.describe()}", op="nl.load_transpose2d")
    return load(src.permute((1, 0)), dtype)


def _in_hbm(call: str, tensor: Any) -> None:
    if not isinstance(tensor, NkiTensor) or tensor.is_on_chip:
        given = tensor.describe() if isinstance(tensor, NkiTensor) else repr(tensor)
        raise NkiError(f"takes a tensor in HBM, but got {given}: nisa.tensor_copy copies between tiles", op=call)


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile of PSUM with partitions and elements of a 2D tile swapped."""
    check_tile("nl.transpose", x)
    if x.ndim != 2:
        raise NkiError(f"takes a 2D tile, but got {x.describe()}", op="nl.transpose")
    swapped = new_tile((x.shape[1], x.shape[0]), x.dtype, MemoryRegion.psum)
    isa.nc_transpose(dst=swapped, data=_in_sbuf(x))
    wanted = result_dtype(dtype, x)
    if wanted is x.dtype:
        return swapped
    cast = new_tile(swapped.shape, wanted, MemoryRegion.psum)
    isa.tensor_copy(dst=cast, src=swapped)
    return cast


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y, or x.T @ y with `transpose_x`, as a new float32 tile of PSUM.

    Without `transpose_x` the Tensor Engine transposes `x` first, so that its partitions are what is summed over.
    """
    for tile in (x, y):
        check_tile("nl.matmul", tile)
    stationary = x if transpose_x else _in_sbuf(transpose(x))
    dst = ndarray((stationary.free_size, y.free_size), "float32", MemoryRegion.psum)
    isa.nc_matmul(dst=dst, stationary=stationary, moving=y)
    return dst


def _in_sbuf(tile: NkiTensor) -> NkiTensor:
    return tile if tile.buffer is MemoryRegion.sbuf else apply(OPERATORS["copy"], (tile,))


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """The same tile with a dimension of one element at position `axis`."""
    return x.expand_dim(axis + x.ndim + 1 if axis < 0 else axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """A tile of `shape` that repeats the dimensions of `x` of size 1; `x` itself if it has that shape already."""
    check_tile("nl.broadcast_to", x)
    shape, wanted = tuple(shape), result_dtype(dtype, x)
    fits = x.ndim == len(shape) and [a in (1, b) for a, b in zip(x.shape, shape, strict=True)]
    if not fits or False in fits:
        raise NkiError(
            f"{x.describe()} does not repeat to {list(shape)}: both have as many dimensions, and each is of that "
            "size or 1",
            op="nl.broadcast_to",
        )
    if x.shape == shape:
        return x if wanted is x.dtype else apply(OPERATORS["copy"], (x,), wanted)
    dst = new_tile(shape, wanted)
    if x.shape[0] == shape[0]:
        isa.tensor_copy(dst=dst, src=repeated(x, shape))
    else:
        _repeat_partition(dst, x)
    return dst


def _partition_repeat(dst: NkiTensor, src: NkiTensor) -> Step:
    """One partition read into several, which no single instruction of the engines does: counted as a DMA."""
    return Step("dma", (dst,), (src,), lambda: dst.write(np.broadcast_to(src.read_for(dst), dst.shape)))


_partition_repeat.__name__ = "broadcast_to"
_repeat_partition = instruction(_partition_repeat, namespace="nl")


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """From each partition of `data`, its free dimensions flattened, the elements at that partition's `indices`."""
    if axis != 0:
        raise NkiError(
            f"axis={axis}: gathers from the flattened free dimensions, axis 0 only", op="nl.gather_flattened"
        )
    for tile in (data, indices):
        check_tile("nl.gather_flattened", tile)
    if indices.dtype == "int32":
        indices = indices.view(uint32)
    dst = new_tile(indices.shape, data.dtype)
    isa.nc_n_gather(dst=dst, data=data, indices=indices)
    wanted = result_dtype(dtype, data)
    return dst if wanted is data.dtype else apply(OPERATORS["copy"], (dst,), wanted)
