"""Reading and writing through an index that is known only when the instruction runs."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtypes import convert
from .errors import NkiError
from .marks import View
from .registers import is_register


if TYPE_CHECKING:
    from .tensor import Indirection, NkiTensor


def gather(tensor: "NkiTensor") -> np.ndarray:
    """The elements that the index points at, as `tensor.dtype.storage`; out of bounds those of row 0."""
    kind = tensor.indirection.kind
    if kind == "scalar":
        return _resolved(tensor).read()
    if kind == "vector":
        rows, index = _rows(tensor)
        values = rows[np.where(_valid(tensor, index), index, 0)]
        return values.reshape(tensor.shape)
    raise NkiError(f"reading through {kind} indirection")


def scatter(tensor: "NkiTensor", values: np.ndarray) -> None:
    """Writes `values` where the index points; rows out of bounds are left out."""
    kind = tensor.indirection.kind
    if kind == "scalar":
        _resolved(tensor).write(values)
        return
    if kind == "vector":
        rows, index = _rows(tensor)
        valid = _valid(tensor, index)
        rows[index[valid]] = convert(values, tensor.dtype).reshape(tensor.shape)[valid]
        for position in index[valid]:
            offset = tensor.byte_offset + int(position) * tensor.indirection.step
            row = View(offset, tensor.shape[1:], tensor.byte_strides[1:], tensor.dtype.itemsize)
            tensor.storage.note_write(row, tensor.free_size)
        return
    raise NkiError(f"writing through {kind} indirection")


def in_bounds(tensor: "NkiTensor") -> np.ndarray:
    """Which of the indices are valid: bool, one element for a scalar, one per partition for a vector."""
    indirection = tensor.indirection
    if indirection.kind == "scalar":
        index = scalar_value(indirection.index)
        return np.array([_first_bad(tensor, index) is None])
    return _valid(tensor, index_values(indirection.index, tensor.shape[0]))


def scalar_value(index: Any) -> int:
    """The number in a register or in a tensor of one element."""
    if is_register(index):
        return index.number()
    if isinstance(index, (int, np.integer)):
        return int(index)
    if index.size != 1:
        raise NkiError(
            f"a dynamic offset is one number: a register or a tensor of one element, not {index.describe()}"
        )
    return int(index.read().reshape(-1)[0])


def index_values(index: "NkiTensor", count: int) -> np.ndarray:
    """The first `count` offsets of a tensor of indices, one per partition (column by column if there are several)."""
    values = index.read().reshape(index.shape[0], -1).T.reshape(-1).astype(np.int64)
    if index.dtype == "uint32":  # negative numbers travel as uint32
        values = values.astype(np.uint32).view(np.int32).astype(np.int64)
    if values.size < count:
        raise NkiError(f"{count} partitions need as many offsets, but {index.describe()} has {values.size}")
    return values[:count]


def _resolved(tensor: "NkiTensor") -> "NkiTensor":
    """The view that a scalar index makes of the tensor."""
    indirection: Indirection = tensor.indirection
    index = scalar_value(indirection.index)
    bad = _first_bad(tensor, index)
    if bad is not None:
        raise NkiError(bad)
    view = tensor._view(tensor.shape, tensor.byte_strides, tensor.byte_offset + index * indirection.step)
    view.indirection = None
    return view


def _first_bad(tensor: "NkiTensor", index: int) -> str | None:
    """What is wrong with a scalar index; the elements from there on must lie in the storage."""
    storage, step = tensor.storage, tensor.indirection.step
    offset = tensor.byte_offset + index * step - storage.base
    lead, width = (1, storage.row_nbytes) if storage.pitch else (0, storage.nbytes)
    if storage.pitch:
        offset %= storage.pitch
    spans = zip(tensor.shape[lead:], tensor.byte_strides[lead:], strict=True)
    last = offset + sum((size - 1) * stride for size, stride in spans) + tensor.dtype.itemsize
    if index >= 0 and offset >= 0 and last <= width:
        return None
    return (
        f"out of bounds: dynamic index {index} into dimension {tensor.indirection.dim}, which has "
        f"{tensor.indirection.limit} elements, of {tensor.describe()}"
    )


def _rows(tensor: "NkiTensor") -> tuple[np.ndarray, np.ndarray]:
    """An array whose leading dimension the offsets index, and the offsets."""
    storage, indirection = tensor.storage, tensor.indirection
    if storage.pitch:
        raise NkiError(f"per-partition offsets address HBM, not {tensor.describe()}")
    index = index_values(indirection.index, tensor.shape[0])
    spans = zip(tensor.shape[1:], tensor.byte_strides[1:], strict=True)
    extent = sum((size - 1) * stride for size, stride in spans) + tensor.dtype.itemsize
    room = storage.nbytes - tensor.byte_offset - extent
    count = max(0, room // indirection.step + 1) if indirection.step else 1
    shape, strides = (count, *tensor.shape[1:]), (indirection.step, *tensor.byte_strides[1:])
    rows = np.ndarray(shape, tensor.dtype.storage, storage.data.root, tensor.byte_offset, strides)
    return rows, index


def _valid(tensor: "NkiTensor", index: np.ndarray) -> np.ndarray:
    limit = tensor.indirection.limit
    return (index >= 0) & (index < (math.inf if limit is None else limit))


def tensor_indirection(tensor: "NkiTensor", index: "NkiTensor", num_elem: int | None) -> "NkiTensor":
    raise NkiError("indirect(): not implemented")
