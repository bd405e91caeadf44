"""Which instructions must wait for which: those that touch the same bytes, where one of them writes.

Every access is covered by a box: on the chip partitions by bytes, in HBM rows by bytes of a row. What is not a box, as
elements with gaps between them, counts as the box around it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from ..marks import Box, overlap
from ..records import Footprint, Record


# A memory is looked up by cells: as many each way as there are ways to cut it, up to this.
CELLS = 64

Key = tuple[str, int]


class Waits(NamedTuple):
    """Indices of earlier instructions: those that wrote what this one reads, and those that wrote and read what it
    overwrites."""

    results: set[int]
    writers: set[int]
    readers: set[int]


class _Access:
    __slots__ = ("box", "is_write", "index")

    def __init__(self, box: Box, is_write: bool, index: int) -> None:
        self.box, self.is_write, self.index = box, is_write, index


class _Memory:
    """What was done to one allocation, or to all of the physical memory, since each byte was last overwritten."""

    def __init__(self, boxes: set[Box]) -> None:
        rows, columns = {box[:2] for box in boxes}, {box[2:] for box in boxes}
        self._row_step = -(-max(stop for _, stop in rows) // min(CELLS, len(rows)))
        self._byte_step = -(-max(stop for _, stop in columns) // min(CELLS, len(columns)))
        self._cells: dict[tuple[int, int], list[_Access]] = {}

    def _cells_of(self, box: Box) -> list[list[_Access]]:
        first, last, start, stop = box
        rows = range(first // self._row_step, (last - 1) // self._row_step + 1)
        columns = range(start // self._byte_step, (stop - 1) // self._byte_step + 1)
        return [self._cells.setdefault((row, column), []) for row in rows for column in columns]

    def read(self, box: Box, index: int, waits: Waits) -> None:
        cells = self._cells_of(box)
        for cell in cells:
            for access in cell:
                if access.is_write and overlap(access.box, box):
                    waits.results.add(access.index)
        access = _Access(box, False, index)
        for cell in cells:
            cell.append(access)

    def write(self, box: Box, index: int, waits: Waits) -> None:
        cells = self._cells_of(box)
        for cell in cells:
            is_covered = False
            for access in cell:
                if overlap(access.box, box):
                    (waits.writers if access.is_write else waits.readers).add(access.index)
                    is_covered |= _contains(box, access.box)
            if is_covered:  # who comes later waits for this one, and it has waited for those
                cell[:] = [access for access in cell if not _contains(box, access.box)]
        access = _Access(box, True, index)
        for cell in cells:
            cell.append(access)


class Hazards:
    """The waits of one core's instructions, asked for one by one in program order."""

    def __init__(self, records: list[Record]) -> None:
        pitches = _row_pitches(records)
        written = {_key(footprint) for record in records for footprint in record.written}
        written |= {_key(footprint) for record in records if _is_meeting(record) for footprint in record.read}
        boxes: dict[Key, set[Box]] = {}
        self._accesses: list[tuple[list[tuple[Key, Box]], list[tuple[Key, Box]]]] = []
        for record in records:
            # What meets another core may bring in what that one has written.
            writes, reads = record.written, record.read
            if _is_meeting(record):
                writes, reads = (*writes, *reads), ()
            # What nothing writes needs no waiting: most kernels' arguments.
            accesses = tuple(
                [(_key(f), box_of(f, pitches.get(_key(f), 1))) for f in footprints if _key(f) in written]
                for footprints in (writes, reads)
            )
            for key, box in (*accesses[0], *accesses[1]):
                boxes.setdefault(key, set()).add(box)
            self._accesses.append(accesses)
        self._memories = {key: _Memory(found) for key, found in boxes.items()}

    def of(self, index: int) -> Waits:
        waits = Waits(set(), set(), set())
        writes, reads = self._accesses[index]
        for key, box in reads:
            self._memories[key].read(box, index, waits)
        for key, box in writes:
            self._memories[key].write(box, index, waits)
        waits.writers.discard(index)
        waits.readers.discard(index)
        return waits


def _is_meeting(record: Record) -> bool:
    return record.op in ("core_barrier", "sendrecv")


def _key(footprint: Footprint) -> Key:
    return footprint.space, footprint.owner


def _row_pitches(records: Iterable[Record]) -> dict[Key, int]:
    """What counts as a row of each tensor in HBM: the largest stride that most accesses have."""
    strides: dict[Key, Counter[int]] = {}
    for record in records:
        for footprint in (*record.written, *record.read):
            if not footprint.pitch:
                pairs = zip(footprint.shape, footprint.strides, strict=True)
                largest = max((abs(stride) for size, stride in pairs if size > 1), default=0)
                strides.setdefault(_key(footprint), Counter())[largest or footprint.dtype.itemsize] += 1
    return {key: counter.most_common(1)[0][0] for key, counter in strides.items()}


def box_of(footprint: Footprint, row_pitch: int) -> Box:
    pitch = footprint.pitch or row_pitch
    offset, rows, extent = footprint.offset, 0, footprint.dtype.itemsize
    for size, stride in zip(footprint.shape, footprint.strides, strict=True):
        if stride < 0:
            offset, stride = offset + (size - 1) * stride, -stride
        if stride >= pitch and stride % pitch == 0:
            rows += (size - 1) * (stride // pitch)
        else:
            extent += (size - 1) * stride
    row, start = divmod(offset, pitch)
    if start + extent > pitch:
        return row, row + rows + 1 + (start + extent - 1) // pitch, 0, pitch
    return row, row + rows + 1, start, start + extent


def _contains(outer: Box, inner: Box) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1] and outer[2] <= inner[2] and inner[3] <= outer[3]
