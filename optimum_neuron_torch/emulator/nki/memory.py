"""On-chip memory and HBM as bytes, with a shadow that knows which of them were ever written.

A tensor without an address gets bytes of its own, as the compiler would find it a place; what all of them need at once
is added up afterwards, from first to last use. A tensor with an explicit address lies in the physical memory of its
core, where tensors overlay each other as on the chip.

The shadow is made late: writes are only noted down, and marked when something incomplete is read.
"""

import enum
import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np

from .dtypes import DType
from .errors import NkiError
from .marks import Marks, View


POISON = 0xFF  # NaN in every floating point type, -1 or the largest number in the integer ones
_OWNERS = itertools.count(1)


class MemoryRegion(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __init__(self, value: str) -> None:
        self.is_hbm = value.endswith("hbm")
        self.is_on_chip = not self.is_hbm


class Bytes:
    """A run of memory, and which of it was written. `root` is None in trace mode, where nothing is stored."""

    __slots__ = ("root", "written")

    def __init__(self, root: np.ndarray | None, pitch: int = 0) -> None:
        self.root = root
        self.written = Marks(0 if root is None else root.size, pitch)

    @classmethod
    def unwritten(cls, size: int, pitch: int = 0) -> "Bytes":
        return cls(np.empty(size, np.uint8), pitch)

    def poison_unwritten(self, view: View) -> np.ndarray | None:
        """None if all these elements were written, else True where an element was not; bool of the view's shape.

        What was not written is poisoned, so that using it shows.
        """
        if self.written.cover(view):
            return None
        written = self.written.mask(view)
        offset, _, strides, _ = view
        np.ndarray(written.shape, np.uint8, self.root, offset, (*strides, 1))[~written] = POISON
        return ~written.all(-1)


@dataclass(slots=True)
class Usage:
    """How long a tensor of on-chip memory lived: indices of the first and last instruction that used it."""

    name: str
    space: MemoryRegion
    shape: tuple[int, ...]
    dtype: DType
    partition: int
    partitions: int
    nbytes: int  # per partition
    address: int | None  # byte in the partition, for tensors with an explicit address
    line: str | None
    allocated: int = 0  # instructions issued before
    first: int = -1
    last: int = -1

    def describe(self) -> str:
        place = "" if self.address is None else f" at ({self.partition}, {self.address})"
        return f"{self.space.name} {self.dtype}{list(self.shape)}{f' {self.name!r}' if self.name else ''}{place}"


class Storage:
    """What one `nl.ndarray` call (or one kernel argument) stands for; all its views share it.

    `pitch` is the number of bytes between two partitions as they lie in `data.root`, `row_nbytes` the number that
    belong to the tensor; both are 0 in HBM. `base` is the first byte.
    """

    __slots__ = (
        "data",
        "space",
        "base",
        "pitch",
        "row_nbytes",
        "nbytes",
        "partition",
        "owner",
        "usage",
        "is_complete",
        "name",
        "accumulated",
        "host",
        "home",
        "number",
    )

    def __init__(
        self,
        data: Bytes,
        space: MemoryRegion,
        *,
        base: int = 0,
        pitch: int = 0,
        row_nbytes: int = 0,
        nbytes: int,
        partition: int = 0,
        is_physical: bool = False,
        usage: Usage | None = None,
        name: str = "",
        is_complete: bool = False,
        host: object = None,
    ) -> None:
        self.data, self.space, self.base, self.pitch = data, space, base, pitch
        self.row_nbytes, self.nbytes, self.partition = row_nbytes, nbytes, partition
        self.owner = 0 if is_physical else next(_OWNERS)
        self.usage, self.name, self.is_complete, self.host = usage, name, is_complete, host
        self.accumulated: Marks | None = None  # PSUM: what a matrix multiplication has written
        self.number = 0  # of a core's tensors on the chip, from 1
        self.home: object = None  # who may use it: a core, or a run for what all its cores share

    def note_write(self, view: View, size: int) -> None:
        if self.is_complete:
            return
        is_whole = size * view.itemsize == self.nbytes and 0 not in view.strides
        if self.owner == 0 or not is_whole:
            self.data.written.note(view)
        if is_whole:
            self.is_complete = True

    def note_write_where(self, view: View, chosen: np.ndarray) -> None:
        """Of the elements of a view those that `chosen`, of its shape, says were written."""
        if not self.is_complete:
            self.data.written.note_where(view, chosen)

    def unwritten(self, view: View) -> np.ndarray | None:
        """None if all these elements were written. What was not is poisoned before anyone reads it."""
        return None if self.is_complete else self.data.poison_unwritten(view)


class PhysicalMemory:
    """The SBUF or PSUM of one core, for tensors with an explicit address.

    Taken when the first one asks for it, and given back by `release`: its pages cost more to make than most kernels.
    """

    _FREE: dict[int, list[Bytes]] = {}  # by size; nothing in them counts as written

    def __init__(
        self, space: MemoryRegion, partitions: int, partition_nbytes: int, is_tracing: bool, min_align: int = 1
    ) -> None:
        self.space, self.partitions, self.partition_nbytes = space, partitions, partition_nbytes
        self.min_align = min_align
        self._is_tracing = is_tracing
        self._data: Bytes | None = None
        self._used: list[tuple[int, int, int, int]] = []  # partitions and bytes of the tensors that were placed

    @property
    def data(self) -> Bytes:
        if self._data is None:
            size = self.partitions * self.partition_nbytes
            try:
                self._data = Bytes(None) if self._is_tracing else self._FREE[size].pop()
            except (KeyError, IndexError):
                self._data = Bytes.unwritten(size, self.partition_nbytes)
        return self._data

    def release(self) -> None:
        """Leaves the memory to the next run, as if nothing had been written."""
        data, self._data = self._data, None
        if data is None or data.root is None:
            return
        data.written.forget(_merged(self._used))
        self._used.clear()
        self._FREE.setdefault(data.root.size, []).append(data)

    def place(
        self, shape: tuple[int, ...], dtype: DType, address: tuple[int, int], name: str, line: str | None
    ) -> Storage:
        """A tensor whose partitions start at `address` = (partition, byte in the partition).

        Raises:
            NkiError: the tensor leaves the memory, or its address is no multiple of the element size.
        """
        try:
            partition, start = map(operator.index, address)
        except (TypeError, ValueError):
            raise NkiError(f"address={address!r}: an address is a pair (partition, byte in the partition)") from None
        row_nbytes = math.prod(shape[1:]) * dtype.itemsize

        def what() -> str:
            return f"{self.space.name} tensor {name or ''}{list(shape)} {dtype} at address ({partition}, {start})"

        if partition < 0 or partition + shape[0] > self.partitions:
            raise NkiError(
                f"{what()} takes partitions {partition} to {partition + shape[0] - 1}; there are {self.partitions}"
            )
        align = max(dtype.itemsize, self.min_align)
        if start % align:
            raise NkiError(
                f"{what()}: byte {start} is no multiple of {align}, as addresses of its elements have to be"
            )
        if start < 0 or start + row_nbytes > self.partition_nbytes:
            raise NkiError(
                f"{what()} takes bytes {start} to {start + row_nbytes} of its partitions; {self.space.name.upper()} "
                f"has {self.partition_nbytes} bytes per partition"
            )
        self._used.append((partition, partition + shape[0], start, start + row_nbytes))
        usage = Usage(name, self.space, shape, dtype, partition, shape[0], row_nbytes, start, line)
        return Storage(
            self.data,
            self.space,
            base=partition * self.partition_nbytes + start,
            pitch=self.partition_nbytes,
            row_nbytes=row_nbytes,
            nbytes=row_nbytes * shape[0],
            partition=partition,
            is_physical=True,
            usage=usage,
            name=name,
        )


def _merged(boxes: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Boxes that cover at least the same bytes, as few as touching byte ranges allow."""
    merged: list[tuple[int, int, int, int]] = []
    for first, last, start, stop in sorted(set(boxes), key=lambda box: box[2:]):
        if merged and start <= merged[-1][3]:
            before = merged[-1]
            first, last = min(first, before[0]), max(last, before[1])
            merged[-1] = (first, last, before[2], max(stop, before[3]))
        else:
            merged.append((first, last, start, stop))
    return merged
