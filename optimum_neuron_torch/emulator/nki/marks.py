"""Which bytes of a memory something has happened to, at the price of a look-up where the same view is asked for again.

What happens is noted as views; a byte array is marked only when a question needs it.
"""

from typing import NamedTuple

import numpy as np


# First row or partition, one behind the last, first byte, one behind the last.
Box = tuple[int, int, int, int]


class View(NamedTuple):
    """Elements of `itemsize` bytes, as NumPy addresses them: all numbers are bytes but the shape's."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


class Marks:
    """Marks on the bytes of one memory. `pitch` is the distance of its partitions, 0 where it has none."""

    __slots__ = ("size", "pitch", "_array", "_noted", "_whole", "_is_partial")

    def __init__(self, size: int, pitch: int = 0) -> None:
        self.size, self.pitch = size, pitch
        self._array: np.ndarray | None = None
        self._noted: list[View] = []  # not in the array yet
        self._whole: set[View] = set()  # views known to be marked in all their bytes
        self._is_partial = False  # whether parts of views were marked too

    def note(self, view: View) -> None:
        """Marks a view."""
        if view not in self._whole:
            self._whole.add(view)
            self._noted.append(view)

    def note_where(self, view: View, chosen: np.ndarray) -> None:
        """Marks the elements of a view that `chosen`, of its shape, names."""
        self.mask(view)[chosen] = True
        self._is_partial = True

    def cover(self, view: View) -> bool:
        """Whether all bytes of a view are marked."""
        if view in self._whole:
            return True
        if not self._whole and not self._is_partial:
            return False
        if not self.mask(view).all():
            return False
        self._whole.add(view)
        return True

    def touch(self, view: View) -> bool:
        """Whether any byte of a view is marked."""
        if not self._whole and not self._is_partial:
            return False
        if view in self._whole:
            return True
        if self._array is None:
            box = self._box(view)
            if not any(overlap(box, self._box(noted)) for noted in self._noted):
                return False
        return bool(self.mask(view).any())

    def mask(self, view: View) -> np.ndarray:
        """The marks themselves: bool of the view's shape and, last, the bytes of an element."""
        if self._array is None:
            self._array = np.zeros(self.size, bool)
        for offset, shape, strides, itemsize in self._noted:
            np.ndarray((*shape, itemsize), bool, self._array, offset, (*strides, 1))[...] = True
        self._noted.clear()
        offset, shape, strides, itemsize = view
        return np.ndarray((*shape, itemsize), bool, self._array, offset, (*strides, 1))

    def forget(self, boxes: list[Box]) -> None:
        """Takes the marks off boxes of (first partition, one behind the last, first byte, one behind the last).

        No other bytes may be marked.
        """
        self._noted.clear()
        self._whole.clear()
        self._is_partial = False
        if self._array is not None:
            rows = self._array.reshape(-1, self.pitch)
            for first, last, start, stop in boxes:
                rows[first:last, start:stop] = False

    def _box(self, view: View) -> Box:
        """Partitions and bytes that a view lies in: it is no larger than this."""
        row, start = divmod(view.offset, self.pitch) if self.pitch else (0, view.offset)
        rows, stop = 1, start + view.itemsize
        for size, stride in zip(view.shape, view.strides, strict=True):
            if self.pitch and stride and stride % self.pitch == 0:
                rows += (size - 1) * (stride // self.pitch)
            elif stride < 0:
                start += (size - 1) * stride
            else:
                stop += (size - 1) * stride
        return row, row + rows, start, stop


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
