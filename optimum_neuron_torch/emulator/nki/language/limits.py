"""`nl.tile_size`: how large tiles may be; and questions about memories."""

import os
from typing import Any

from ..chips import Chip, current_chip
from ..core import current, is_running
from ..memory import MemoryRegion
from ..objects import NKIObject


TRANSPOSE_VARIABLE = "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE"


def _chip() -> Chip:
    return current().run.chip if is_running() else current_chip()


class TileSize(NKIObject):
    """Limits of the chip that the kernel runs on; outside a kernel, of the one that the environment names.

    The usable size of SBUF is not documented apart from its capacity: here all of it is.
    """

    # Constants of all generations, from the NKI documentation of `nl.tile_size` and the architecture guides.
    pmax = 128
    psum_bank_fmax = 512
    psum_fmax = 512  # The old name, which says something else.
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        """Seven where DMA transposes run on the Tensor Engine, which then keeps the last bank for itself."""
        on_tensor_engine = os.environ.get(TRANSPOSE_VARIABLE, "").lower() in ("1", "true")
        return 7 if on_tensor_engine and _chip().generation >= 3 else 8

    @property
    def sbuf_fmax_bytes(self) -> int:
        return _chip().sbuf_partition_bytes

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        return _chip().partitions * _chip().sbuf_partition_bytes

    @property
    def total_available_sbuf_size(self) -> int:
        """The old name of `sbuf_fmax_bytes`: per partition, not in total."""
        return self.sbuf_fmax_bytes


tile_size = TileSize()


def is_hbm(buffer: Any) -> bool:
    """Whether a memory is any kind of HBM."""
    return isinstance(buffer, MemoryRegion) and buffer.is_hbm


def is_on_chip(buffer: Any) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return isinstance(buffer, MemoryRegion) and buffer.is_on_chip


def is_sbuf(buffer: Any) -> bool:
    return buffer is MemoryRegion.sbuf


def is_psum(buffer: Any) -> bool:
    return buffer is MemoryRegion.psum
