"""Facts about the NeuronCores, each with its public source, and which of them a kernel runs on.

Sources, all of the Neuron documentation (awsdocs-neuron.readthedocs-hosted.com):
    [v2], [v3], [v4]    nki/guides/architecture/trainium_inferentia2_arch, trainium2_arch, trainium3_arch
    [isa]               nki/api/nki.isa; the costs of single instructions as of release 2.26, which still lists them
    [shared]            nki/api/nki.api.shared
    [perf]              nki/deep-dives/nki_perf_guide
    [dma]               nki/get-started/about/nki-dma-overview and nki/deep-dives/nki-dma-bandwidth-guide
    [dge]               nki/deep-dives/nki-dge
    [matmul]            nki/guides/tutorials/kernel-optimization, with profiles of Trn2
What no page tells is marked as an assumption.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..device.hardware import DEFAULT_PLATFORM, PLATFORM_VARIABLE
from .errors import NkiError


VERSION_VARIABLE = "NKI_NC_VERSION"

GENERATIONS = {"trn1": 2, "inf2": 2, "gen2": 2, "trn2": 3, "gen3": 3, "trn3": 4, "gen4": 4}

KIB = 1024


class NkiTargetError(NkiError, ValueError):
    """There is no such NeuronCore."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One NeuronCore of a generation: sizes, clocks in GHz (cycles per ns), costs in cycles, bandwidths in bytes per
    ns.

    What only newer generations have is None or 1 for the others.
    """

    name: str
    generation: int

    # Memories. [v2] "NeuronCore-v2 Compute Engines", [v3] and [v4] "Compute Engine Updates"; the part of SBUF that a
    # compiler leaves to kernels is not documented: here it is all of it.
    partitions: int = 128
    sbuf_partition_bytes: int
    psum_partition_bytes: int = 16 * KIB
    # [v2] "Near-memory accumulation in PSUM": eight banks of 512 values of 4 bytes.
    psum_banks: int = 8

    # Tiles. [isa] nc_matmul, bn_stats; `nl.tile_size`.
    stationary_free_max: int = 128
    moving_free_max: int = 512
    bn_stats_free_max: int = 512
    psum_min_align: int = 4
    sbuf_min_align: int = 1

    # Clocks. The tables "Compute Engine Specifications" of [v2], [v3], [v4].
    tensor_ghz: float
    vector_ghz: float
    scalar_ghz: float
    gpsimd_ghz: float

    # Tensor Engine. [isa] nc_matmul: max(min(64, columns of stationary), columns of moving) cycles, four times as many
    # for float32; [v3] "Built-in Transpose Support": float32 transposes take half of that from v3 on.
    array_rows: int = 128
    array_columns: int = 128
    matmul_min_cycles: int = 64
    float32_matmul_passes: int = 4
    float32_transpose_passes: int = 4
    # Multiplications and additions per element of the array and cycle beside those of bfloat16: [v3] "Double FP8
    # Matmul Performance", [v4] "Quad-MXFP8/MXFP4 Matmul Performance".
    float8_matmul_speedup: int = 1
    mx_matmul_speedup: int = 1

    # Vector and Scalar Engine. [isa]: max(64, N) cycles for N elements per partition; Scalar Engine's reading of its
    # accumulators: [v2] "Pipelined Reduction".
    min_cycles: int = 64
    read_accumulator_cycles: int = 64
    # From the last element read to a result that the next instruction can read. [v2] "Cost Model" of the Vector
    # Engine: 100 cycles of static overhead where each instruction needs the one before. [perf] Opt #5a: such
    # instructions of one element start every 264 cycles on the Scalar Engine, 200 more than the 64. That these hold
    # for later generations and, for the Tensor Engine and GpSimd, at all, is an assumption.
    tensor_result_cycles: int = 64
    vector_result_cycles: int = 100
    scalar_result_cycles: int = 200
    gpsimd_result_cycles: int = 100
    # [v2] "Access pattern": elements 16 bytes apart or more halve the bandwidth of SBUF and PSUM.
    slow_stride_bytes: int = 16
    # Elements per partition and cycle beside those of v2, of tensor_copy and tensor_scalar: [v3] "Vector Engine
    # Performance Mode" for 16-bit floats, all of its conditions met or all but one; [v3] and [v4] "Compute Engine
    # Specifications" for other types, and for 8-bit floats; [v4] "Performance mode" of the Scalar Engine.
    fast_itemsizes: tuple[int, ...] = ()
    vector_copy_speedup: int = 1
    vector_copy_speedup_in_part: int = 1
    vector_copy_speedup_of_others: int = 1
    scalar_copy_speedup: int = 1

    # GpSimd. [isa] iota, affine_select: 150 + N cycles.
    gpsimd_start_cycles: int = 150

    # [v2] "Data Movement": before v3, Vector Engine and GpSimd cannot access SBUF in parallel, nor Vector and Scalar
    # Engine PSUM. [v3] "Data Movement Updates".
    has_exclusive_ports: bool = False

    # DMA. [dma] "Performance Considerations".
    dma_engines: int = 16
    dma_bytes_per_ns: float  # of one engine
    # What each contiguous piece takes beside its bytes. [matmul], "Dma Packet Time" of the first two kernels: 5.5 and
    # 3.8 ns, in pieces of 512 and 2048 bytes. The same for all generations is an assumption.
    dma_piece_ns: float = 4.5
    # Descriptors of one transfer, made one transfer after the other. [dge] "hwdge": 600 ns; [matmul], first kernel:
    # 608; the curve in [dma] is one of 880. Before v3 they are made before the kernel starts: [v3] "Descriptor
    # Generation Engine". That both of a core's generators together are no faster is an assumption, by [matmul].
    dma_descriptors_ns: float = 600.0
    # [dma] "Why Large Contiguous DMA Payloads Are Required": from the semaphore to the start.
    dma_start_ns: float = 1300.0
    # [v3] "DMA Transpose": up to 90% of the throughput of a copy from HBM, 50% within SBUF. None: [perf] Opt #10, one
    # element at a time.
    dma_transpose_from_hbm: float | None = None
    dma_transpose_from_sbuf: float | None = None
    # [v4] "SBUF Read-Add-Write": half the throughput before v4.
    dma_compute_share: float = 0.5
    # The device's bandwidth over its cores; same pages, first section.
    hbm_bytes_per_ns: float

    @property
    def psum_bank_bytes(self) -> int:
        return self.psum_partition_bytes // self.psum_banks

    @property
    def dma_peak_bytes_per_ns(self) -> float:
        return self.dma_engines * self.dma_bytes_per_ns

    @property
    def matmul_flops_per_ns(self) -> float:
        """Of 16-bit inputs: 92 TFLOPS on v2, 79 on v3 and v4."""
        return 2 * self.array_rows * self.array_columns * self.tensor_ghz

    def ghz(self, engine: str) -> float:
        """The clock of "tensor", "vector", "scalar" or "gpsimd"."""
        return getattr(self, f"{engine}_ghz")

    def result_cycles(self, engine: str) -> int:
        return getattr(self, f"{engine}_result_cycles")


CHIPS = {
    2: Chip(
        name="Trn1 (NeuronCore-v2)",
        generation=2,
        sbuf_partition_bytes=192 * KIB,
        tensor_ghz=2.8,
        vector_ghz=1.12,
        scalar_ghz=1.4,
        gpsimd_ghz=1.4,
        has_exclusive_ports=True,
        dma_descriptors_ns=0.0,
        dma_bytes_per_ns=17.0,
        hbm_bytes_per_ns=820 / 2,
    ),
    3: Chip(
        name="Trn2 (NeuronCore-v3)",
        generation=3,
        sbuf_partition_bytes=224 * KIB,
        tensor_ghz=2.4,
        vector_ghz=0.96,
        scalar_ghz=1.2,
        gpsimd_ghz=1.2,
        float32_transpose_passes=2,
        float8_matmul_speedup=2,
        fast_itemsizes=(2,),
        vector_copy_speedup=4,
        vector_copy_speedup_in_part=2,
        vector_copy_speedup_of_others=2,
        dma_bytes_per_ns=23.0,
        dma_transpose_from_hbm=0.9,
        dma_transpose_from_sbuf=0.5,
        hbm_bytes_per_ns=3000 / 8,
    ),
    4: Chip(
        name="Trn3 (NeuronCore-v4)",
        generation=4,
        sbuf_partition_bytes=256 * KIB,
        # [isa] nc_matmul: all eight banks of PSUM, with float32 results; twice as many with bfloat16 ones.
        moving_free_max=4096,
        tensor_ghz=2.4,
        vector_ghz=1.2,
        scalar_ghz=1.2,
        gpsimd_ghz=1.2,
        float32_transpose_passes=2,
        float8_matmul_speedup=2,
        mx_matmul_speedup=4,
        fast_itemsizes=(1, 2),
        vector_copy_speedup=4,
        vector_copy_speedup_in_part=2,
        vector_copy_speedup_of_others=2,
        scalar_copy_speedup=2,
        dma_bytes_per_ns=33.0,
        dma_transpose_from_hbm=0.9,
        dma_transpose_from_sbuf=0.5,
        dma_compute_share=1.0,
        hbm_bytes_per_ns=4700 / 8,
    ),
}

_CHOSEN: ContextVar[Chip | None] = ContextVar("nki_chip", default=None)


def chip_of(target: str) -> Chip:
    """The NeuronCore of e.g. "trn2" or "gen3".

    Raises:
        NkiTargetError: there is none of that name.
    """
    generation = GENERATIONS.get(str(target).strip().lower())
    if generation is None:
        raise NkiTargetError(_unknown(target))
    return CHIPS[generation]


def _unknown(target: str) -> str:
    return f"{target!r} is no target of NKI; there are {', '.join(GENERATIONS)}"


def current_chip() -> Chip:
    """What kernels run on here: what `targeting` chose, else what the environment names, else Trn2.

    Raises:
        NkiTargetError: the environment names what does not exist.
    """
    chosen = _CHOSEN.get()
    if chosen is not None:
        return chosen
    for variable in (PLATFORM_VARIABLE, VERSION_VARIABLE):
        target = os.environ.get(variable, "").strip()
        if target:
            if target.lower() not in GENERATIONS:
                raise NkiTargetError(f"{variable}={target}: {_unknown(target)}")
            return chip_of(target)
    return chip_of(DEFAULT_PLATFORM)


@contextmanager
def targeting(target: str | Chip) -> Iterator[Chip]:
    """Kernels called inside run on the NeuronCore of e.g. "trn3", whatever the environment says."""
    chip = target if isinstance(target, Chip) else chip_of(target)
    token = _CHOSEN.set(chip)
    try:
        yield chip
    finally:
        _CHOSEN.reset(token)
