"""The enumerations that instructions take, as NKI defines them."""

import enum
import functools
from typing import Any

from ..chips import current_chip
from ..core import current, is_running


class engine(enum.Enum):
    """Which engine executes an instruction."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown


class reduce_cmd(enum.Enum):
    """What an instruction does with the accumulators of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(enum.Enum):
    """Who makes the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(enum.Enum):
    """What a dynamic index out of bounds does."""

    error = 0
    skip = 1


class matmul_perf_mode(enum.Enum):
    none = "none"
    double_row = "double_row"


class dma_engine(enum.Enum):
    """Which DMA `sendrecv` uses."""

    dma = 1
    gpsimd_dma = 2


@functools.total_ordering
class nc_version(enum.Enum):
    """The generation of a NeuronCore: Trn1, Trn2, Trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: Any) -> bool:
        return self.value < other.value if isinstance(other, nc_version) else NotImplemented


def get_nc_version() -> nc_version:
    """The generation that the kernel runs on."""
    chip = current().run.chip if is_running() else current_chip()
    return nc_version(chip.generation)


def get_nc_sub_version() -> int:
    """The revision of the silicon within its generation: always the first here."""
    return 0


__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
]
