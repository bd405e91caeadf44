"""Tensors that a kernel makes."""

from collections.abc import Sequence
from typing import Any

from ..core import current
from ..memory import MemoryRegion
from ..tensor import NkiTensor


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: MemoryRegion = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A tensor whose elements nothing has written yet.

    `address` = (partition, byte in the partition) places it in the physical memory of SBUF or PSUM.

    Raises:
        NkiError: it does not fit.
    """
    return current().allocate(tuple(shape), dtype, buffer, name, address)
