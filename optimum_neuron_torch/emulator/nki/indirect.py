"""Reading and writing through an index that is known only when the instruction runs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from .dtypes import convert
from .errors import NkiError
from .registers import is_register


if TYPE_CHECKING:
    from .tensor import NkiTensor


def gather(tensor: "NkiTensor") -> np.ndarray:
    """The elements that the index points at, as `tensor.dtype.storage`. Rows out of bounds hold anything."""
    kind = tensor.indirection.kind
    if kind == "scalar":
        view, rows = _resolved(tensor)
        if rows == slice(0, tensor.shape[0]):
            return view.read()
        values = np.zeros(tensor.shape, tensor.dtype.storage)
        if rows.stop > rows.start:
            values[rows] = view.read()
        return values
    if kind == "vector":
        rows, index = _rows(tensor)
        valid = _valid(tensor, index)
        if not tensor.storage.is_complete:
            for position in np.unique(index[valid]):
                _row(tensor, int(position)).read()  # reports what nothing has written
        if not len(rows):
            return np.zeros(tensor.shape, tensor.dtype.storage)
        return rows[np.where(valid, index, 0)].reshape(tensor.shape)
    return _gather_columns(tensor)


def scatter(tensor: "NkiTensor", values: np.ndarray, keep: np.ndarray | None = None) -> None:
    """Writes `values` where the index points; rows out of bounds, or that `keep` does not mark, are left out."""
    kind = tensor.indirection.kind
    if kind == "scalar":
        view, rows = _resolved(tensor)
        if rows.stop > rows.start:
            values = convert(values, tensor.dtype).reshape(tensor.shape)
            if keep is None:
                view.write(values[rows])
            else:
                for row in range(rows.start, rows.stop):
                    if keep[row]:
                        view[row - rows.start : row - rows.start + 1].write(values[row : row + 1])
        return
    if kind == "vector":
        rows, index = _rows(tensor)
        valid = _valid(tensor, index) if keep is None else _valid(tensor, index) & keep
        rows[index[valid]] = convert(values, tensor.dtype).reshape(tensor.shape)[valid]
        for position in index[valid]:
            _row(tensor, int(position)).note_write()
        return
    _scatter_columns(tensor, values)


def in_bounds(tensor: "NkiTensor") -> np.ndarray:
    """Which rows, along the first dimension, the index leaves within the tensor's storage."""
    if tensor.indirection.kind == "scalar":
        _, rows = _resolved(tensor)
        keep = np.zeros(tensor.shape[0], bool)
        keep[rows] = True
        return keep
    return _valid(tensor, index_values(tensor.indirection.index, tensor.shape[0]))


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


def _resolved(tensor: "NkiTensor") -> "tuple[NkiTensor, slice]":
    """The view that a scalar index makes of the tensor, of those rows that lie in its storage, and which these are."""
    storage, indirection = tensor.storage, tensor.indirection
    offset = tensor.byte_offset + scalar_value(indirection.index) * indirection.step
    rows = _rows_within(tensor, offset - storage.base)
    start = offset + rows.start * tensor.byte_strides[0]
    view = tensor._view((rows.stop - rows.start, *tensor.shape[1:]), tensor.byte_strides, start)
    view.indirection = None
    return view, rows


def _rows_within(tensor: "NkiTensor", offset: int) -> slice:
    """The rows of a view that starts `offset` bytes into the storage which lie in it."""
    storage, count, stride = tensor.storage, tensor.shape[0], tensor.byte_strides[0]
    spans = zip(tensor.shape[1:], tensor.byte_strides[1:], strict=True)
    extent = sum((size - 1) * step for size, step in spans) + tensor.dtype.itemsize
    if storage.pitch:  # the index moves within partitions: all of them, or none
        first = tensor.byte_offset - storage.base
        position = first % storage.pitch + offset - first
        return slice(0, count if 0 <= position and position + extent <= storage.row_nbytes else 0)
    if stride == 0:
        return slice(0, count if 0 <= offset and offset + extent <= storage.nbytes else 0)
    first = max(0, -(offset // stride))
    last = min(count, (storage.nbytes - extent - offset) // stride + 1)
    return slice(first, max(first, last))


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
    if count < indirection.limit and (index[_valid(tensor, index)] >= count).any():
        raise NkiError(f"out of bounds: a row that the offsets choose ends behind the storage of {tensor.describe()}")
    shape, strides = (count, *tensor.shape[1:]), (indirection.step, *tensor.byte_strides[1:])
    rows = np.ndarray(shape, tensor.dtype.storage, storage.data.root, tensor.byte_offset, strides)
    return rows, index


def _row(tensor: "NkiTensor", position: int) -> "NkiTensor":
    """The row that an offset of a vector chooses."""
    offset = tensor.byte_offset + position * tensor.indirection.step
    row = tensor._view((1, *tensor.shape[1:]), (0, *tensor.byte_strides[1:]), offset)
    row.indirection = None
    return row


def _valid(tensor: "NkiTensor", index: np.ndarray) -> np.ndarray:
    """Which offsets of a vector are below the size of the dimension they choose from."""
    return (index >= 0) & (index < tensor.indirection.limit)


# Tensor indirection: columns of the free dimension, by a list of offsets that each group of partitions holds. The
# group is what the engine's access hardware sees at once. Source: `NkiTensor.indirect` in the Neuron documentation.
GROUP_PARTITIONS = {"tensor": 32, "vector": 16, "scalar": 16, "gpsimd": 16}


def tensor_indirection(tensor: "NkiTensor", index: "NkiTensor", num_elem: int | None) -> "NkiTensor":
    """A view of shape (partitions, num_elem), whose columns are chosen when the instruction runs."""
    from .core import current
    from .memory import MemoryRegion
    from .tensor import Indirection

    chip = current().run.chip
    if chip.generation < 4:
        raise NkiError(f"indirect() needs NeuronCore-v4 or later; the kernel runs on {chip.name}")
    if not tensor.is_on_chip or tensor.is_indirect():
        raise NkiError(f"indirect() takes a tensor in SBUF or PSUM without a dynamic index, not {tensor.describe()}")
    if index.buffer is not MemoryRegion.sbuf or index.shape[0] != tensor.shape[0] or not index.dtype.is_integer:
        raise NkiError(
            f"index holds integers in SBUF, in the {tensor.shape[0]} partitions of the tensor, not {index.describe()}"
        )
    if index.start_partition % 32:
        raise NkiError(f"index starts at partition 0, 32, 64 or 96, not {index.start_partition}")
    count = index.size if num_elem is None else int(num_elem)
    if not 1 <= count <= index.size:
        raise NkiError(f"num_elem={num_elem}: 1 to the {index.size} offsets of {index.describe()}")
    columns = Indirection("free", index, tensor.dtype.itemsize, tensor.free_size, 1)
    columns.source = tensor
    return tensor._view((tensor.shape[0], count), tensor.byte_strides[:2], indirection=columns)


def _columns(tensor: "NkiTensor") -> np.ndarray:
    """The column of every element, (partitions, num_elem): offset i of a group is index[i % group, i // group]."""
    from .core import current_engine

    indirection, count = tensor.indirection, tensor.shape[1]
    partitions = tensor.shape[0]
    group = GROUP_PARTITIONS[current_engine()]
    held = indirection.index.read().reshape(partitions, -1).astype(np.int64)
    parts = []
    for start in range(0, partitions, group):
        offsets = held[start : start + group].T.reshape(-1)
        if len(offsets) < count:
            raise NkiError(
                f"num_elem={count}, and {min(group, partitions - start)} partitions of a group hold {len(offsets)} "
                f"offsets ({indirection.index.describe()})"
            )
        parts.append(np.broadcast_to(offsets[:count], (min(group, partitions - start), count)))
    columns = np.concatenate(parts)
    bad = columns[(columns < 0) | (columns >= indirection.limit)]
    if bad.size:
        raise NkiError(f"out of bounds: column {bad[0]} of the {indirection.limit} of {indirection.source.describe()}")
    return columns


def _gather_columns(tensor: "NkiTensor") -> np.ndarray:
    values = tensor.indirection.source.read().reshape(tensor.shape[0], -1)
    return np.take_along_axis(values, _columns(tensor), axis=1)


def _scatter_columns(tensor: "NkiTensor", values: np.ndarray) -> None:
    source, columns = tensor.indirection.source, _columns(tensor)
    written = convert(values, tensor.dtype).reshape(tensor.shape)
    if source.storage.is_complete:
        whole = source.array.reshape(tensor.shape[0], -1).copy()
        np.put_along_axis(whole, columns, written, axis=1)
        source.array[...] = whole.reshape(source.shape)
        return
    flat = source.reshape((source.shape[0], source.free_size))
    for row in range(tensor.shape[0]):
        for position, column in enumerate(columns[row]):
            flat[row : row + 1, int(column) : int(column) + 1].write(written[row : row + 1, position : position + 1])
