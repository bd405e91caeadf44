"""Reads of data that another tensor has overwritten: what goes wrong where explicit addresses overlap in time.

Worked out after the run, from the records, so that it costs nothing while a kernel runs. A tensor at an address reads
what lies there, whoever wrote it, and kernels overlay tensors on purpose. What is reported is data that a tensor had
written itself, that another one wrote over, and that the first then read; the other one was allocated after the first
was in use, or is its twin in shape and dtype, as buffers that rotate are. Tensors that are allocated together to be
two sights of the same bytes are neither.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..core import Core
from ..memory import MemoryRegion, Usage
from ..records import Footprint, Record


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
        if not _any_overlap(placed):
            continue
        writers = _Writers(core, space)
        for record in core.records:
            for footprint in record.read:
                for read in writers.losses(record, footprint):
                    found.setdefault((id(read.tensor), id(read.other)), read)
            for footprint in record.written:
                writers.note(footprint)
    return list(found.values())


class _Writers:
    """For every byte of a memory which tensor wrote it last, and which other one before that (0: none).

    Partitions that every instruction treats alike share a row.
    """

    def __init__(self, core: Core, space: MemoryRegion) -> None:
        self.usages, self.space = core.usages, space
        self._rows = self._shared_rows(core)
        shape = (max(self._rows.values(), default=0) + 1, core.memories[space].partition_nbytes)
        self.last, self.before = np.zeros(shape, np.uint32), np.zeros(shape, np.uint32)
        self._sizes = np.bincount(list(self._rows.values()) or [0])

    def _shared_rows(self, core: Core) -> dict[int, int]:
        """The row of each partition."""
        cuts = {0, core.memories[self.space].partitions}
        for record in core.records:
            for footprint in (*record.written, *record.read):
                if self._concerns(footprint):
                    partitions = _partitions(footprint)
                    cuts.update((partitions.start, partitions[-1] + 1) if partitions.step == 1 else partitions)
                    if partitions.step != 1:
                        cuts.update(partition + 1 for partition in partitions)
        edges = sorted(cuts)
        spans = zip(edges, edges[1:], strict=False)
        return {partition: row for row, (start, stop) in enumerate(spans) for partition in range(start, stop)}

    def note(self, footprint: Footprint) -> None:
        if not self._concerns(footprint):
            return
        for row in self._rows_of(footprint):
            last, before = (_cells(array[row], footprint, footprint.dtype.itemsize) for array in self._maps)
            is_other = last != footprint.tensor
            before[is_other] = last[is_other]
            last[...] = footprint.tensor

    def losses(self, record: Record, footprint: Footprint) -> list[OverwrittenRead]:
        if not self._concerns(footprint):
            return []
        counts: Counter[int] = Counter()
        for row in self._rows_of(footprint):
            last, before = (_cells(array[row], footprint, 1) for array in self._maps)
            is_lost = (last != footprint.tensor) & (before == footprint.tensor)
            if is_lost.any():
                for number, count in zip(*np.unique(last[is_lost], return_counts=True), strict=True):
                    counts[int(number)] += int(count) * int(self._sizes[row])
        tensor = self.usages[footprint.tensor - 1]
        others = [(self.usages[number - 1], count) for number, count in counts.items()]
        return [OverwrittenRead(record, tensor, other, count) for other, count in others if _is_reuse(tensor, other)]

    @property
    def _maps(self) -> tuple[np.ndarray, np.ndarray]:
        return self.last, self.before

    def _rows_of(self, footprint: Footprint) -> set[int]:
        return {self._rows[partition] for partition in _partitions(footprint)}

    def _concerns(self, footprint: Footprint) -> bool:
        return footprint.tensor > 0 and footprint.owner == 0 and footprint.space == self.space.name


def _partitions(footprint: Footprint) -> range:
    first, step = footprint.offset // footprint.pitch, footprint.strides[0] // footprint.pitch
    return range(first, first + footprint.shape[0] * max(step, 1), max(step, 1))


def _cells(row: np.ndarray, footprint: Footprint, itemsize: int) -> np.ndarray:
    """The entries of one partition for the first `itemsize` bytes of each element."""
    size = row.itemsize
    start, strides = footprint.offset % footprint.pitch, [stride * size for stride in footprint.strides[1:]]
    return np.ndarray((*footprint.shape[1:], itemsize), row.dtype, row, start * size, (*strides, size))


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
