"""`nl.tile_size`: how large tiles may be; and questions about memories."""

import os
from typing import Any

from ..chips import Chip, current_chip
from ..core import current, is_running
from ..memory import MemoryRegion
from ..objects import NKIObject


FLOAT32_BYTES = 4
TRANSPOSE_VARIABLE = "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE"


def _chip() -> Chip:
    return current().run.chip if is_running() else current_chip()


class TileSize(NKIObject):
    """Limits of the chip that the kernel runs on; outside a kernel, of the one that the environment names."""

    # The same on all generations, as what the documentation lists without a property is: kernels tile by it. A single
    # matrix multiplication of NeuronCore-v4 takes more.
    gemm_moving_fmax = 512

    @property
    def pmax(self) -> int:
        return _chip().partitions

    @property
    def psum_bank_fmax_bytes(self) -> int:
        return _chip().psum_bank_bytes

    @property
    def psum_bank_fmax(self) -> int:
        return self.psum_bank_fmax_bytes // FLOAT32_BYTES

    @property
    def psum_fmax(self) -> int:
        """The old name of `psum_bank_fmax`: of a bank, not of PSUM."""
        return self.psum_bank_fmax

    @property
    def psum_num_banks(self) -> int:
        """One less where DMA transposes run on the Tensor Engine, which then keeps the last bank for itself."""
        chip = _chip()
        on_tensor_engine = os.environ.get(TRANSPOSE_VARIABLE, "").lower() in ("1", "true")
        return chip.psum_banks - (on_tensor_engine and chip.generation >= 3)

    @property
    def psum_min_align(self) -> int:
        return _chip().psum_min_align

    @property
    def sbuf_min_align(self) -> int:
        return _chip().sbuf_min_align

    @property
    def gemm_stationary_fmax(self) -> int:
        return _chip().stationary_free_max

    @property
    def bn_stats_fmax(self) -> int:
        return _chip().bn_stats_free_max

    @property
    def sbuf_fmax_bytes(self) -> int:
        return _chip().sbuf_partition_bytes

    @property
    def sbuf_fmax(self) -> int:
        return self.sbuf_fmax_bytes // FLOAT32_BYTES

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
