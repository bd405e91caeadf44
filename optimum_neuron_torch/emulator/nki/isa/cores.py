"""Between the two cores of a logical NeuronCore: barriers and exchanges."""

from collections.abc import Sequence
from typing import Any

from ..core import current, warn_once
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import dma_engine as dma_engines
from .constants import engine as engines
from .operands import in_buffer, member, needs_generation, on_chip


# Bytes per partition that the GpSimd engine's own DMA exchanges, by the size of an element: API reference, sendrecv.
GPSIMD_DMA_LIMITS = {4: 1024, 2: 512, 1: 256}


@instruction
def core_barrier(data: NkiTensor, cores: Sequence[int], engine: Any = engines.gpsimd) -> Step:
    """Neither core goes on before both are here; `data` is the tensor in shared HBM that they wait for."""
    needs_generation(3, "core_barrier")
    core = current()
    if not isinstance(data, NkiTensor):
        raise NkiError(f"data is what both cores share: a tensor in shared HBM, not {data!r}")
    if data.buffer is not MemoryRegion.shared_hbm:
        warn_once(f"core_barrier waits for tensors in shared HBM, and {data.describe()} is a core's own")
    if tuple(cores) != (0, 1):
        raise NkiError(f"cores={tuple(cores)}: the barrier is between both cores, (0, 1)")
    _needs_two_cores(core)
    engine = member(engine, engines)
    link = core.run.link
    detail = {"barrier": ("core_barrier", link.count(core, "core_barrier"))}

    def wait() -> None:
        link.barrier(core, "core_barrier", f"core_barrier on {data.describe()}")

    return Step(engine.name, (), (data,), wait, detail)


@instruction
def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = dma_engines.dma,
) -> Step:
    """Sends `src` to one core and receives `dst` from one; both in SBUF, of the same shape and dtype."""
    needs_generation(3, "sendrecv")
    core = current()
    on_chip(src, dst)
    in_buffer(src, MemoryRegion.sbuf, role="src")
    in_buffer(dst, MemoryRegion.sbuf, role="dst")
    if src.dtype != dst.dtype or src.shape != dst.shape:
        raise NkiError(f"src and dst have one shape and dtype, but are {src.describe()} and {dst.describe()}")
    for rank, role in ((send_to_rank, "send_to_rank"), (recv_from_rank, "recv_from_rank")):
        if rank not in (0, 1):
            raise NkiError(f"{role}={rank}: the cores are 0 and 1")
    if member(dma_engine, dma_engines) is dma_engines.gpsimd_dma:
        nbytes, limit = src.free_size * src.dtype.itemsize, GPSIMD_DMA_LIMITS[src.dtype.itemsize]
        if nbytes > limit:
            raise NkiError(f"{nbytes} bytes per partition, and dma_engine.gpsimd_dma exchanges {limit} of {src.dtype}")
    _needs_two_cores(core)
    link = core.run.link
    pipe = ("sendrecv", int(pipe_id))

    def exchange() -> None:
        reason = f"sendrecv on pipe {pipe_id} of {dst.describe()}"
        values = src.read().copy()
        received = link.exchange(core, values, int(send_to_rank), int(recv_from_rank), pipe, reason)
        if received.shape != dst.shape or received.dtype != dst.dtype.storage:
            raise NkiError(
                f"core {recv_from_rank} sends {received.dtype}{list(received.shape)} on pipe {pipe_id}, and this core "
                f"waits for {dst.describe()}"
            )
        dst.write(received)

    detail = {"to": int(send_to_rank), "from": int(recv_from_rank), "pipe": int(pipe_id)}
    return Step("dma", (dst,), (src,), exchange, detail)


def _needs_two_cores(core: Any) -> None:
    if core.run.lnc != 2:
        raise NkiError("there is one core: run the kernel as kernel[2](...)")
