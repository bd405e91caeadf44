"""Matrix multiplication: the Tensor Engine."""

from typing import Any

from ..core import current
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import matmul_perf_mode
from .operands import in_buffer, on_chip


@instruction
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: Any = matmul_perf_mode.none,
) -> Step:
    """`dst_MN = stationary_KM.T @ moving_KN`, summed in float32."""
    on_chip(dst, stationary, moving)
    in_buffer(dst, MemoryRegion.psum, role="dst")
    in_buffer(stationary, MemoryRegion.sbuf, role="stationary")
    in_buffer(moving, MemoryRegion.sbuf, role="moving")
    chip = current().run.chip
    k, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    if m > chip.partitions:
        raise NkiError(
            f"the free size of stationary is {m}, and the limit is {chip.partitions} ({stationary.describe()})"
        )
    if dst.shape[0] != m or dst.free_size != n or moving.shape[0] != k:
        raise NkiError(f"({k}, {m}).T @ ({moving.shape[0]}, {n}) -> {list(dst.shape)}")

    def multiply() -> None:
        dst.write(stationary.read_float32().T @ moving.read_float32())

    return Step("tensor", (dst,), (stationary, moving), multiply, {"k": k, "m": m, "n": n})
