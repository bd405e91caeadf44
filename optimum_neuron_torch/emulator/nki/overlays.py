"""Reads of data that another tensor has overwritten: what goes wrong where explicit addresses overlap in time.

Worked out after the run, from the records, so that it costs nothing while a kernel runs. A tensor at an address reads
what lies there, whoever wrote it, and kernels overlay tensors on purpose. What is reported is data that a tensor had
written itself, that another one wrote over, and that the first then read; the other one was allocated after the first
was in use, or is its twin in shape and dtype, as buffers that rotate are. Tensors that are allocated together to be
two sights of the same bytes are neither.
"""

from typing import NamedTuple

import numpy as np

from .core import Core
from .memory import MemoryRegion, Usage
from .records import Footprint, Record


class OverwrittenRead(NamedTuple):
    """An instruction read `elements` elements of `tensor` over which `other` had written since."""

    record: Record
    tensor: Usage
    other: Usage
    elements: int

    def __str__(self) -> str:
        return (
            f"{self.record.op} at {self.record.line} reads {self.elements} elements of {self.tensor.describe()}, over "
            f"which {self.other.describe()} was written: their addresses overlap"
        )


def overwritten_reads(core: Core) -> list[OverwrittenRead]:
    """The first such read of each pair of tensors, in the order of issue."""
    found: dict[tuple[int, int], OverwrittenRead] = {}
    for space in (MemoryRegion.sbuf, MemoryRegion.psum):
        placed = [usage for usage in core.usages if usage.space is space and usage.address is not None]
        if _any_overlap(placed):
            writers = _Writers(core, space)
            for record in core.records:
                for footprint in record.read:
                    for read in writers.losses(record, footprint):
                        found.setdefault((id(read.tensor), id(read.other)), read)
                for footprint in record.written:
                    writers.note(footprint)
    return list(found.values())


class _Writers:
    """For every byte of a memory which tensor wrote it last, and which other one before that (0: none)."""

    def __init__(self, core: Core, space: MemoryRegion) -> None:
        memory = core.memories[space]
        size = memory.partitions * memory.partition_nbytes
        self.usages, self.space = core.usages, space
        self.last, self.before = np.zeros(size, np.uint32), np.zeros(size, np.uint32)  # pages are made when touched

    def note(self, footprint: Footprint) -> None:
        if not self._concerns(footprint):
            return
        last, before = (_cells(array, footprint, footprint.dtype.itemsize) for array in (self.last, self.before))
        is_other = last != footprint.tensor
        before[is_other] = last[is_other]
        last[...] = footprint.tensor

    def losses(self, record: Record, footprint: Footprint) -> list[OverwrittenRead]:
        if not self._concerns(footprint):
            return []
        last, before = _cells(self.last, footprint, 1), _cells(self.before, footprint, 1)
        is_lost = (last != footprint.tensor) & (before == footprint.tensor)
        if not is_lost.any():
            return []
        tensor = self.usages[footprint.tensor - 1]
        others, counts = np.unique(last[is_lost], return_counts=True)
        pairs = [(self.usages[number - 1], int(count)) for number, count in zip(others, counts, strict=True)]
        return [OverwrittenRead(record, tensor, other, count) for other, count in pairs if _is_reuse(tensor, other)]

    def _concerns(self, footprint: Footprint) -> bool:
        return footprint.tensor > 0 and footprint.owner == 0 and footprint.space == self.space.name


def _cells(array: np.ndarray, footprint: Footprint, itemsize: int) -> np.ndarray:
    """The entries of `array` for the first `itemsize` bytes of each element."""
    size = array.itemsize
    strides = [stride * size for stride in footprint.strides]
    return np.ndarray((*footprint.shape, itemsize), array.dtype, array, footprint.offset * size, (*strides, size))


def _is_reuse(tensor: Usage, other: Usage) -> bool:
    is_twin = (tensor.shape, tensor.dtype, tensor.address) == (other.shape, other.dtype, other.address)
    return is_twin or other.allocated > tensor.first


def _any_overlap(usages: list[Usage]) -> bool:
    """Whether bytes of two of them are the same; sorted by address, an overlap shows between some neighbours."""
    ordered = sorted(usages, key=lambda usage: usage.address)
    reach = -1
    for usage in ordered:
        if usage.address < reach:
            return True
        reach = max(reach, usage.address + usage.nbytes)
    return False
