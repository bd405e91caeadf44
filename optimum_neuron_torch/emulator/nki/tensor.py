"""`NkiTensor`: a view of storage, and how instructions read and write through it.

Positions are kept in bytes: `byte_offset` into the storage's memory and one stride per dimension. On the chip
dimension 0 is the partition, whose stride is a multiple of the memory's pitch. What users see (`strides`, `offset`,
the patterns of `ap`) counts elements, with a partition as long as the tensor that was allocated.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .dtypes import DType, as_dtype, convert, store, to_float32
from .errors import NkiError
from .marks import View
from .memory import MemoryRegion, Storage
from .objects import NKIObject
from .records import Footprint
from .registers import NkiTypeError, VirtualRegister, is_register


WHOLE = slice(None)  # as an index


class DynamicSlice:
    """`nl.ds(start, size)`: `size` elements from `start` on; `start` may be a register."""

    __slots__ = ("start", "size")

    def __init__(self, start: int | VirtualRegister, size: int) -> None:
        self.start, self.size = start, size

    def __repr__(self) -> str:
        return f"ds({self.start}, {self.size})"


class Indirection:
    """An index that is looked up when an instruction runs.

    `kind` is "scalar" (one offset for all), "vector" (an offset per partition) or "free" (`NkiTensor.indirect`).
    `index` is a register, a number or a tensor; `step` the bytes that one unit of it moves; `limit` the number of
    valid positions of the dimension it addresses, `dim` that dimension in the tensor it was made from, `source` that
    tensor for "free".
    """

    __slots__ = ("kind", "index", "step", "limit", "dim", "source")

    def __init__(self, kind: str, index: Any, step: int, limit: int | None, dim: int) -> None:
        self.kind, self.index, self.step, self.limit, self.dim = kind, index, step, limit, dim
        self.source: NkiTensor | None = None


class NkiTensor(NKIObject):
    """A tensor in SBUF, PSUM or HBM. Views share their storage; `nl.ndarray` makes one with storage of its own.

    Attributes:
        shape: on the chip the first dimension is the partition, and there are at least two.
        dtype: a `DType`, which is a string.
        name: what the user called it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        storage: Storage | None,
        buffer: MemoryRegion = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        self.shape, self.dtype, self.name = tuple(shape), as_dtype(dtype), name
        self.storage, self._buffer = storage, buffer if storage is None else storage.space
        self.byte_offset = 0 if storage is None else storage.base
        strides = contiguous_strides(self.shape, self.dtype.itemsize)
        if storage is not None and storage.pitch:
            strides = (storage.pitch, *strides[1:])
        self.byte_strides = strides
        self.indirection: Indirection | None = None
        self._array = self._footprint = self._fault = None

    def _view(
        self,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int | None = None,
        dtype: DType | None = None,
        indirection: Indirection | None = None,
    ) -> "NkiTensor":
        view = object.__new__(NkiTensor)
        view.shape, view.byte_strides = tuple(shape), tuple(strides)
        view.byte_offset = self.byte_offset if offset is None else offset
        view.dtype = self.dtype if dtype is None else dtype
        view.storage, view._buffer, view.name = self.storage, self._buffer, self.name
        view.indirection = self.indirection if indirection is None else indirection
        view._array = view._footprint = None
        view._fault = self._fault
        return view

    # What a tensor is

    @property
    def buffer(self) -> MemoryRegion:
        return self._buffer

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_on_chip(self) -> bool:
        return self._buffer.is_on_chip

    @property
    def partitions(self) -> int:
        return self.shape[0]

    @property
    def free_size(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def start_partition(self) -> int:
        """The physical partition that it starts on; tensors without an address start at 0."""
        storage = self.storage
        if storage is None or not storage.pitch:
            return 0
        if storage.owner == 0:
            return self.byte_offset // storage.pitch
        return storage.partition + (self.byte_offset - storage.base) // storage.pitch

    @property
    def start_byte(self) -> int:
        """Where it starts in its partition, in bytes; tensors without an address start at 0."""
        storage = self.storage
        return self.byte_offset % storage.pitch if storage.pitch else self.byte_offset

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements. A partition counts as many as one row of the allocated tensor has."""
        itemsize = self.dtype.itemsize
        free = tuple(stride // itemsize for stride in self.byte_strides)
        if self.storage is not None and self.storage.pitch:
            return (self.byte_strides[0] // self.storage.pitch * self._row, *free[1:])
        return free

    @property
    def offset(self) -> int:
        """Elements from the start of the storage to the first one of this view."""
        storage, itemsize = self.storage, self.dtype.itemsize
        distance = self.byte_offset - storage.base
        if not storage.pitch:
            return distance // itemsize
        partition, start = divmod(distance, storage.pitch)
        return partition * self._row + start // itemsize

    @property
    def _row(self) -> int:
        """Elements of this dtype in one partition of the allocated tensor."""
        return self.storage.row_nbytes // self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Whether the elements follow each other in memory; on the chip, within every partition."""
        dims = range(1, self.ndim) if self.is_on_chip else range(self.ndim)
        run = self.dtype.itemsize
        for dim in reversed(dims):
            if self.shape[dim] != 1 and self.byte_strides[dim] != run:
                return False
            run *= self.shape[dim]
        return True

    def is_indirect(self) -> bool:
        return self.indirection is not None

    def has_index(self, kind: str) -> bool:
        """Whether it has a dynamic index of that kind: "scalar", "vector" or "free"."""
        return self.indirection is not None and self.indirection.kind == kind

    def get_pattern(self) -> list[list[int]]:
        """`[[stride, count], ...]` in elements, as `ap` takes it."""
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    def describe(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"{self._buffer.name} {self.dtype}{list(self.shape)}{name}"

    def __repr__(self) -> str:
        return f"<NkiTensor {self.describe()}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        from .core import is_running, warn_once

        if is_running():
            warn_once("`if tensor:` asks whether there is a tensor, not what is in it; `is not None` says so")
        return True

    def __float__(self) -> float:
        raise NkiTypeError(f"what {self.describe()} holds is known only while the kernel runs: no number for Python")

    __int__ = __index__ = __complex__ = __float__

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise NkiTypeError(
            f"what {self.describe()} holds is known only while the kernel runs: NumPy cannot compute with it"
        )

    def __iter__(self) -> Iterator["NkiTensor"]:
        return (self[i] for i in range(self.shape[0]))

    @property
    def footprint(self) -> Footprint:
        if self._fault is not None:
            raise self._fault
        if self._footprint is None:
            storage = self.storage
            self._footprint = Footprint(
                storage.space.name,
                storage.owner,
                storage.pitch,
                self.byte_offset,
                self.shape,
                self.byte_strides,
                self.dtype,
                storage.number if self.indirection is None else 0,
            )
        return self._footprint

    # What instructions do with it

    @property
    def place(self) -> View:
        """The bytes of its memory that it covers."""
        return View(self.byte_offset, self.shape, self.byte_strides, self.dtype.itemsize)

    @property
    def array(self) -> np.ndarray:
        """The elements themselves: a NumPy view of shape `shape` and dtype `dtype.storage`, not checked in any way."""
        if self._array is None:
            if self._fault is not None:
                raise self._fault
            self._array = np.ndarray(
                self.shape, self.dtype.storage, self.storage.data.root, self.byte_offset, self.byte_strides
            )
        return self._array

    def read(self) -> np.ndarray:
        """The elements, in `dtype.storage`; a view where possible. Reports those that nothing has written."""
        if self.indirection is not None:
            from .indirect import gather

            return gather(self)
        if not self.storage.is_complete:
            self._report_unwritten()
        return self.array

    def read_for(self, dst: "NkiTensor") -> np.ndarray:
        """The elements as a copy to `dst` takes them: bit by bit where the dtypes agree, else by way of float32."""
        values = self.read()
        return values if self.dtype == dst.dtype else to_float32(values, self.dtype)

    def read_float32(self) -> np.ndarray:
        """The elements as the engines compute with them: float32 of shape (partitions, elements per partition)."""
        values = to_float32(self.read(), self.dtype)
        return values if values.ndim == 2 else values.reshape(self.shape[0], -1)

    def write(self, values: np.ndarray) -> None:
        """Stores `values`, converted to `dtype`, as many as the tensor has, in row-major order."""
        if self.indirection is not None:
            from .indirect import scatter

            scatter(self, values)
            return
        store(values if values.shape == self.shape else values.reshape(self.shape), self.dtype, self.array)
        storage = self.storage
        if not storage.is_complete:
            storage.note_write(self.place, self.size)

    def write_where(self, chosen: np.ndarray, values: np.ndarray) -> None:
        """Stores `values`, of this shape or one element, where `chosen` is true; what else there is stays unread."""
        if self.indirection is not None:
            self.write(np.where(chosen, convert(values, self.dtype), self.read()))
            return
        np.copyto(self.array, convert(values, self.dtype), where=chosen)
        storage = self.storage
        if not storage.is_complete:
            chosen = np.broadcast_to(chosen, self.shape)
            if chosen.all():
                self.note_write()
            else:
                storage.note_write_where(self.place, chosen)

    def note_write(self) -> None:
        """For instructions that store through `array` themselves."""
        self.storage.note_write(self.place, self.size)

    def _report_unwritten(self) -> None:
        missing = self.storage.unwritten(self.place)
        if missing is not None:
            from .core import current

            current().run.report_unwritten(self, int(missing.sum()))

    # Views

    def __getitem__(self, key: Any) -> "NkiTensor":
        key = _expanded(self, key)
        shape, strides, offset, dynamic = [], [], self.byte_offset, None
        for dim, part in enumerate(key):
            stride, size = self.byte_strides[dim], self.shape[dim]
            keeps = False
            if part is WHOLE:
                shape.append(size)
                strides.append(stride)
                continue
            if isinstance(part, DynamicSlice):
                if is_register(part.start):
                    dynamic = self._dynamic(dynamic, part.start, dim)
                    start, count, step = 0, int(part.size), 1
                else:
                    start, count, step = int(part.start), int(part.size), 1
                keeps = True
            elif isinstance(part, slice):
                start, count, step = _bounds(part, size)
                keeps = True
            elif is_register(part) or isinstance(part, NkiTensor):
                dynamic = self._dynamic(dynamic, part, dim)
                start, count, step = 0, 1, 1
            elif isinstance(part, (int, np.integer)):
                start, count, step = int(part), 1, 1
                start += size if -size <= start < 0 else 0
            else:
                raise NkiError(
                    f"a tensor is indexed with integers, slices, nl.ds and `...`, but got {part!r}. Masks, nl.arange "
                    "and nl.mgrid are gone: use slices, .ap() for an access pattern, .expand_dim() for a new dimension"
                )
            self._check_range(dim, start, count, step)
            if dim == 0 and self.has_index("vector"):
                if (start, count, step) != (0, size, 1):
                    raise NkiError("the partitions of a tensor with per-partition offsets cannot be sliced")
            offset += start * stride
            if keeps or (self.is_on_chip and dim == 0):
                shape.append(count)
                strides.append(stride * step)
        return self._finished_view(shape, strides, offset, dynamic)

    def _finished_view(
        self, shape: list[int], strides: list[int], offset: int, dynamic: Indirection | None
    ) -> "NkiTensor":
        """On the chip a view has two dimensions at least, in HBM one."""
        if len(shape) < 2:
            for _ in range(len(shape), 2 if self.is_on_chip else 1):
                shape.append(1)
                strides.append(self.dtype.itemsize)
        return self._view(shape, strides, offset, indirection=dynamic)

    def _dynamic(self, already: Indirection | None, index: Any, dim: int) -> Indirection:
        if already is not None or self.indirection is not None:
            raise NkiError("a tensor takes one dynamic index; this one has one already")
        if self.is_on_chip and dim == 0:
            raise NkiError(
                f"the partition of an on-chip tensor cannot be chosen by a register or a tensor ({self.describe()})"
            )
        _check_index(index)
        return Indirection("scalar", index, self.byte_strides[dim], self.shape[dim], dim)

    def _check_range(self, dim: int, start: int, count: int, step: int) -> None:
        size = self.shape[dim]
        if count <= 0 or step <= 0:
            raise NkiError(
                f"dimension {dim} of {self.describe()}: a slice of {count} elements with step {step} is empty"
            )
        last = start + (count - 1) * step
        if start < 0 or last >= size:
            which = f"element {start}" if count == 1 else f"elements {start} to {last}"
            raise NkiError(f"out of bounds: {which} of dimension {dim}, which has {size} ({self.describe()})")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise NkiError(
            "tensors are not assigned to: write with an instruction, e.g. nisa.tensor_copy(dst=t[...], src=value) or "
            "nisa.dma_copy(dst=t[...], src=value)"
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> "NkiTensor":
        dim = self._dim(dim)
        return self[(slice(None),) * dim + (slice(start, end, step),)]

    def select(self, dim: int, index: "int | NkiTensor | VirtualRegister") -> "NkiTensor":
        dim = self._dim(dim)
        return self[(slice(None),) * dim + (index,)]

    def vector_select(self, dim: int, vector_offset: "NkiTensor") -> "NkiTensor":
        if dim != 0:
            raise NkiError(f"vector_select chooses along dimension 0, but got dim={dim}")
        if self.is_on_chip:
            raise NkiError(f"vector_select works on HBM tensors, not on {self.describe()}")
        if self.is_indirect():
            raise NkiError("a tensor takes one dynamic index; this one has one already")
        _check_index(vector_offset)
        vector = Indirection("vector", vector_offset, self.byte_strides[0], self.shape[0], 0)
        return self._view((vector_offset.shape[0], *self.shape[1:]), self.byte_strides, indirection=vector)

    def permute(self, dims: Sequence[int]) -> "NkiTensor":
        if sorted(dims) != list(range(self.ndim)):
            raise NkiError(
                f"permute{tuple(dims)}: not a permutation of the {self.ndim} dimensions of {self.describe()}"
            )
        if dims[0] != 0 and self._leads:
            raise NkiError(f"permute{tuple(dims)}: the partition dimension stays first ({self.describe()})")
        return self._view([self.shape[d] for d in dims], [self.byte_strides[d] for d in dims])

    def broadcast(self, dim: int, size: int) -> "NkiTensor":
        dim = self._dim(dim)
        if self.shape[dim] != 1:
            raise NkiError(f"broadcast: dimension {dim} of {self.describe()} has {self.shape[dim]} elements, not 1")
        if dim == 0 and self._leads:
            raise NkiError(f"broadcast: the partition dimension cannot be repeated ({self.describe()})")
        return self._view(_replaced(self.shape, dim, (size,)), _replaced(self.byte_strides, dim, (0,)))

    def expand_dim(self, dim: int) -> "NkiTensor":
        if dim == 0 and self._leads:
            raise NkiError(f"expand_dim(0): the partition dimension stays first ({self.describe()})")
        if not 0 <= dim <= self.ndim:
            raise NkiError(f"expand_dim({dim}): {self.describe()} has {self.ndim} dimensions")
        stride = self.byte_strides[dim] * self.shape[dim] if dim < self.ndim else self.dtype.itemsize
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return self._view(shape, (*self.byte_strides[:dim], stride, *self.byte_strides[dim:]))

    def squeeze_dim(self, dim: int) -> "NkiTensor":
        dim = self._dim(dim)
        if self.shape[dim] != 1:
            raise NkiError(f"squeeze_dim({dim}): the dimension has {self.shape[dim]} elements ({self.describe()})")
        if dim == 0 and self._leads:
            raise NkiError(f"squeeze_dim(0): the partition dimension stays ({self.describe()})")
        return self._view(_replaced(self.shape, dim, ()), _replaced(self.byte_strides, dim, ()))

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> "NkiTensor":
        dim = self._dim(dim)
        shape = _inferred(shape, self.shape[dim], self)
        if dim == 0 and self._leads and shape[0] != self.shape[0]:
            raise NkiError(f"reshape_dim(0): the partition dimension cannot be split ({self.describe()})")
        inner = [self.byte_strides[dim] * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return self._view(_replaced(self.shape, dim, shape), _replaced(self.byte_strides, dim, inner))

    def flatten_dims(self, start_dim: int, end_dim: int) -> "NkiTensor":
        start, end = self._dim(start_dim), self._dim(end_dim)
        if start == 0 and self._leads:
            raise NkiError(f"flatten_dims(0, ...): the partition dimension stays first ({self.describe()})")
        merged = math.prod(self.shape[start : end + 1])
        strides = _reshaped_strides(self.shape[start : end + 1], self.byte_strides[start : end + 1], (merged,))
        if strides is None:
            raise NkiError(f"flatten_dims({start}, {end}): these dimensions of {self.describe()} are not contiguous")
        shape = (*self.shape[:start], merged, *self.shape[end + 1 :])
        return self._view(shape, (*self.byte_strides[:start], *strides, *self.byte_strides[end + 1 :]))

    def reshape(self, *shape: Any) -> "NkiTensor":
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        wanted = _inferred(wanted, self.size, self)
        if self._leads and (not wanted or wanted[0] != self.shape[0]):
            raise NkiError(f"reshape to {list(wanted)}: the partition dimension of {self.describe()} keeps its size")
        if self._leads:
            free = _reshaped_strides(self.shape[1:], self.byte_strides[1:], wanted[1:])
            strides = None if free is None else (self.byte_strides[0], *free)
        else:
            strides = _reshaped_strides(self.shape, self.byte_strides, wanted)
        if strides is None:
            raise NkiError(f"reshape to {list(wanted)}: the elements of {self.describe()} are not contiguous")
        return self._view(wanted, strides)

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> "NkiTensor":
        if len(src_pattern) != self.ndim:
            raise NkiError(f"rearrange: {len(src_pattern)} names for the {self.ndim} dimensions of {self.describe()}")
        sizes, view, names = dict(fixed_sizes or {}), self, []
        for dim in reversed(range(self.ndim)):
            part = src_pattern[dim]
            group = (part,) if isinstance(part, str) else tuple(part)
            if len(group) != 1:
                view = view.reshape_dim(dim, [sizes.get(name, -1) for name in group])
            names[:0] = group
        order = [name for part in dst_pattern for name in ((part,) if isinstance(part, str) else part)]
        if sorted(order) != sorted(names):
            raise NkiError(f"rearrange: {dst_pattern} does not name the dimensions of {src_pattern}")
        view = view.permute([names.index(name) for name in order])
        for dim, part in enumerate(dst_pattern):
            if not isinstance(part, str) and len(part) > 1:
                view = view.flatten_dims(dim, dim + len(part) - 1)
        return view

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: "NkiTensor | None" = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> "NkiTensor":
        """A view by an explicit `[[stride, count], ...]` pattern over the storage, in elements of `dtype`."""
        dtype = self.dtype if dtype is None else as_dtype(dtype)
        try:
            steps, shape = zip(
                *((operator.index(step), operator.index(count)) for step, count in pattern), strict=True
            )
        except (TypeError, ValueError):
            raise NkiError(
                f"ap: a pattern is a list of [stride, count] pairs of integers, but got {pattern!r}"
            ) from None
        if not shape or min(shape) < 1:
            raise NkiError(f"ap: the counts of pattern {list(map(list, pattern))} must be positive")
        start, strides = self._addressed(steps, shape, int(offset or 0), dtype)
        indirection = self._pattern_indirection(scalar_offset, vector_offset, indirect_dim)
        view = self._view(shape, strides, start, dtype, indirection)
        try:
            view._check_inside(pattern, offset, self)
        except NkiError as error:
            view._fault = error  # kernels make views that they then do not use: the instruction raises it
        return view

    def _addressed(
        self, steps: tuple[int, ...], shape: tuple[int, ...], offset: int, dtype: DType
    ) -> tuple[int, list[int]]:
        """Byte offset and byte strides of a pattern in elements."""
        storage, itemsize = self.storage, dtype.itemsize
        if not storage.pitch:
            return self.byte_offset + offset * itemsize, [step * itemsize for step in steps]
        row = storage.row_nbytes // itemsize
        first = steps[0]
        if first % row and shape[0] > 1:
            own = self.free_size * self.dtype.itemsize // itemsize
            if first % own:
                raise NkiError(
                    f"ap: the first step, {first}, goes from partition to partition and must be a multiple of the "
                    f"{row} elements that a partition of {self.describe()} has"
                )
            # Patterns made from the shape of a view count a partition by what the view has of it.
            first = first // own * row
        partition, position = divmod(self.byte_offset - storage.base, storage.pitch)
        partition, position = divmod(partition * row + position // itemsize + offset, row)
        start = storage.base + partition * storage.pitch + position * itemsize
        return start, [first // row * storage.pitch, *(step * itemsize for step in steps[1:])]

    def _pattern_indirection(self, scalar: Any, vector: Any, dim: int) -> Indirection | None:
        if scalar is None and vector is None:
            return self.indirection
        if scalar is not None and vector is not None:
            raise NkiError("ap: scalar_offset and vector_offset exclude each other")
        if self.is_indirect():
            raise NkiError("ap: a tensor takes one dynamic index; this one has one already")
        dim = self._dim(dim)
        _check_index(scalar if vector is None else vector)
        if vector is not None:
            return Indirection("vector", vector, self.byte_strides[dim], self.shape[dim], dim)
        return Indirection("scalar", scalar, self.byte_strides[dim], self.shape[dim], dim)

    def _check_inside(self, pattern: Any, offset: int | None, base: "NkiTensor") -> None:
        """Whether the view stays in its storage; along an indirect dimension that is asked when the index is known."""
        storage = self.storage
        free = [(size - 1) * stride for size, stride in zip(self.shape, self.byte_strides, strict=True)]
        is_vector = self.has_index("vector")
        first, width = self.byte_offset - storage.base, storage.nbytes
        lead = 0
        if storage.pitch:
            partition, first = divmod(first, storage.pitch)
            last_partition = partition + (self.shape[0] - 1) * (self.byte_strides[0] // storage.pitch)
            if partition < 0 or last_partition >= storage.nbytes // max(storage.row_nbytes, 1):
                raise NkiError(
                    f"out of bounds: pattern {list(map(list, pattern))} offset {offset or 0} reaches partition "
                    f"{last_partition} of {base.describe()}"
                )
            lead, width = 1, storage.row_nbytes
        elif is_vector:
            lead = 1
        low = first + sum(step for step in free[lead:] if step < 0)
        high = first + sum(step for step in free[lead:] if step > 0) + self.dtype.itemsize
        if low < 0 or high > width:
            raise NkiError(
                f"out of bounds: pattern {list(map(list, pattern))} offset {offset or 0} covers bytes {low} to {high} "
                f"of {'a partition of ' if lead and storage.pitch else ''}a tensor with {width} "
                f"bytes ({base.describe()})"
            )

    def view(self, dtype: Any) -> "NkiTensor":
        """The same bytes as another dtype; the last dimension grows or shrinks."""
        dtype = as_dtype(dtype)
        if self.is_indirect():
            raise NkiError("view: not after a dynamic index")
        have, want = self.dtype.itemsize, dtype.itemsize
        if have == want:
            return self._view(self.shape, self.byte_strides, dtype=dtype)
        nbytes = self.shape[-1] * have
        if self.shape[-1] > 1 and self.byte_strides[-1] != have:
            raise NkiError(f"view as {dtype}: the last dimension of {self.describe()} is not contiguous")
        if nbytes % want:
            raise NkiError(f"view as {dtype}: the last dimension has {nbytes} bytes, no multiple of {want}")
        return self._view((*self.shape[:-1], nbytes // want), (*self.byte_strides[:-1], want), dtype=dtype)

    reinterpret_cast = view

    def indirect(self, index: "NkiTensor", num_elem: int | None = None) -> "NkiTensor":
        """Columns of the free dimension chosen by `index`, one list per group of partitions; Trn3 and later."""
        from .indirect import tensor_indirection

        return tensor_indirection(self, index, num_elem)

    @property
    def _leads(self) -> bool:
        """Whether dimension 0 must stay what it is."""
        return self.is_on_chip or self.has_index("vector")

    def _dim(self, dim: int) -> int:
        wanted = dim + self.ndim if dim < 0 else dim
        if not 0 <= wanted < self.ndim:
            raise NkiError(f"there is no dimension {dim}: {self.describe()} has {self.ndim}")
        return wanted


# What Python's operators on tensors would have to be; they do not exist, as an instruction needs a destination.
_INSTEAD = {
    **{
        "add": ("+", "nl.add"),
        "sub": ("-", "nl.subtract"),
        "mul": ("*", "nl.multiply"),
        "truediv": ("/", "nl.divide"),
    },
    **{
        "pow": ("**", "nl.power"),
        "mod": ("%", "nl.mod"),
        "floordiv": ("//", "nl.divide"),
        "matmul": ("@", "nl.matmul"),
    },
    **{"and": ("&", "nl.bitwise_and"), "or": ("|", "nl.bitwise_or"), "xor": ("^", "nl.bitwise_xor")},
    **{"lt": ("<", "nl.less"), "le": ("<=", "nl.less_equal"), "gt": (">", "nl.greater")},
    **{"ge": (">=", "nl.greater_equal"), "neg": ("-", "nl.negative"), "invert": ("~", "nl.invert")},
}


def _refuse_operator(symbol: str, instead: str) -> Any:
    def refuse(self: NkiTensor, other: Any = None) -> None:
        raise NkiTypeError(
            f"`{symbol}` on tensors does not exist ({self.describe()}): use an instruction with op={instead}, which "
            f"writes to a dst, or {instead}(...), which makes a new tensor"
        )

    return refuse


for _name, (_symbol, _instead) in _INSTEAD.items():
    for _prefix in ("", "r", "i"):
        setattr(NkiTensor, f"__{_prefix}{_name}__", _refuse_operator(_symbol, _instead))


def _check_index(index: Any) -> None:
    if isinstance(index, NkiTensor) and not index.dtype.is_integer:
        raise NkiError(f"a dynamic index is an integer, but got {index.describe()}")


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, run = [], itemsize
    for size in reversed(shape):
        strides.append(run)
        run *= size
    return tuple(reversed(strides))


def _expanded(tensor: NkiTensor, key: Any) -> tuple[Any, ...]:
    """The key with one entry per dimension, `WHOLE` for all of it."""
    key = key if isinstance(key, tuple) else (key,)
    dots = [i for i, part in enumerate(key) if part is Ellipsis]
    if len(dots) > 1:
        raise NkiError("an index has one `...` at most")
    missing = len(tensor.shape) - len(key) + len(dots)
    if missing < 0:
        raise NkiError(f"{len(key)} indices for {tensor.describe()}")
    if missing or dots:
        at = dots[0] if dots else len(key)
        key = key[:at] + (WHOLE,) * missing + key[at + len(dots) :]
    return tuple([WHOLE if type(part) is slice and part == WHOLE else part for part in key])


def _bounds(part: slice, size: int) -> tuple[int, int, int]:
    """Start, number of elements and step of a slice. Nothing is clipped: a slice beyond the end is an error."""
    start, stop, step = part.start, part.stop, part.step
    start = 0 if start is None else start if type(start) is int else _bound(start, part)
    stop = size if stop is None else stop if type(stop) is int else _bound(stop, part)
    step = 1 if step is None else step if type(step) is int else _bound(step, part)
    start, stop = start + size if start < 0 else start, stop + size if stop < 0 else stop
    return start, -(-(stop - start) // step) if step else 0, step


def _bound(value: Any, part: slice) -> int:
    if is_register(value):
        raise NkiError("a slice with a register as its bound has no static size: use nl.ds(register, size)")
    try:
        return operator.index(value)
    except TypeError:
        raise NkiError(f"slice bounds are integers, but got {part!r}") from None


def _replaced(values: Sequence[int], dim: int, by: Sequence[int]) -> tuple[int, ...]:
    return (*values[:dim], *by, *values[dim + 1 :])


def _inferred(shape: Sequence[int], size: int, tensor: NkiTensor) -> tuple[int, ...]:
    shape = tuple(int(n) for n in shape)
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and size % known == 0:
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != size or -1 in shape:
        raise NkiError(f"{list(shape)} does not hold the {size} elements of {tensor.describe()}")
    return shape


def _reshaped_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides that give the same elements the shape `wanted`; None where that takes a copy."""
    runs = []  # [elements, stride of the innermost]: dimensions that count through memory together
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    result, left = [], list(reversed(wanted))
    for count, stride in reversed(runs):
        taken = 1
        while taken < count:
            if not left:
                return None
            size = left.pop(0)
            if count % (taken * size):
                return None
            result.append(stride * taken)
            taken *= size
    step = strides[-1] if len(strides) else 1
    result.extend(result[-1] if result else step for _ in left)
    return tuple(reversed(result)) if all(size == 1 for size in left) else None
