"""The DMA engines: copies between HBM and SBUF, transposes on the way, sums on the way.

Sources: `nki.isa.dma_copy`, `dma_transpose` and `dma_compute` in the Neuron documentation's API reference.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import to_float32
from ..errors import NkiError
from ..indirect import in_bounds
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import dge_mode as dge_modes
from .constants import engine as engines
from .constants import oob_mode as oob_modes
from .operands import member, needs_generation


def _check_dma(*tensors: tuple[str, Any]) -> None:
    for role, tensor in tensors:
        if not isinstance(tensor, NkiTensor):
            raise NkiError(f"{role} must be a tensor in HBM or SBUF, but is {tensor!r}")
        if tensor.buffer is MemoryRegion.psum:
            raise NkiError(f"DMA cannot access PSUM ({tensor.describe()}): copy to SBUF first, with nisa.tensor_copy")


def _check_modes(priority: int | None, dge_mode: Any, oob_mode: Any, engine: Any = engines.unknown) -> tuple[Any, Any]:
    """dge_mode and oob_mode as members of their enumerations."""
    dge_mode, oob_mode = member(dge_mode, dge_modes), member(oob_mode, oob_modes)
    engine = member(engine, engines)
    if dge_mode is dge_modes.hwdge:
        needs_generation(3, "dge_mode.hwdge")
    if engine is not engines.unknown:
        if dge_mode is not dge_modes.hwdge:
            raise NkiError(
                f"engine={engine.name} says who makes descriptors in hardware: give dge_mode=nisa.dge_mode.hwdge"
            )
        if engine not in (engines.sync, engines.scalar):
            raise NkiError(f"engine={engine.name}: the Sync and the Scalar engine make descriptors in hardware")
    if priority is not None:
        needs_generation(4, "priority")
        if priority not in range(4):
            raise NkiError(f"priority={priority}: there are 0 (highest) to 3")
    return dge_mode, oob_mode


def _check_bounds(oob_mode: Any, *tensors: NkiTensor) -> None:
    for tensor in tensors:
        if tensor.is_indirect() and oob_mode is oob_modes.error and not in_bounds(tensor).all():
            raise NkiError(
                f"out of bounds: a dynamic index reaches beyond the {tensor.indirection.limit} elements of dimension "
                f"{tensor.indirection.dim} of {tensor.describe()}; oob_mode=nisa.oob_mode.skip leaves such rows out"
            )


def _cast(values: np.ndarray, src: NkiTensor, dst: NkiTensor) -> np.ndarray:
    """As a DMA casts: by way of float32, where the dtypes differ."""
    return values if src.dtype == dst.dtype else to_float32(values, src.dtype)


@instruction
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = oob_modes.error,
    dge_mode: Any = dge_modes.unknown,
    engine: Any = engines.unknown,
) -> Step:
    """`dst = src` between HBM and SBUF, element by element; other dtypes go through float32."""
    _check_dma(("dst", dst), ("src", src))
    dge_mode, oob_mode = _check_modes(priority, dge_mode, oob_mode, engine)
    if dst.size != src.size:
        raise NkiError(f"{src.size} elements into {dst.size} ({src.describe()} to {dst.describe()})")
    if dge_mode is dge_modes.hwdge and dst.dtype != src.dtype:
        raise NkiError(f"dge_mode.hwdge does not cast: src is {src.dtype}, dst {dst.dtype}")

    def copy() -> None:
        _check_bounds(oob_mode, dst, src)
        keep = in_bounds(src) if src.is_indirect() and oob_mode is oob_modes.skip else None
        if keep is not None and not keep.all():
            _copy_rows(dst, src, keep)
        else:
            dst.write(_cast(src.read(), src, dst))

    return Step("dma", (dst,), (src,), copy)


def _copy_rows(dst: NkiTensor, src: NkiTensor, keep: np.ndarray) -> None:
    """The rows whose index is in bounds; the others of `dst` stay."""
    if not keep.any():
        return
    rows = _cast(src.read(), src, dst).reshape(src.shape[0], -1)
    if dst.size // src.shape[0] != dst.free_size or dst.shape[0] != src.shape[0]:
        raise NkiError(f"rows that are skipped need dst to have them as its own: {src.describe()} to {dst.describe()}")
    for row in np.flatnonzero(keep):
        dst[int(row) : int(row) + 1].write(rows[row])


TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


@instruction
def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: Any = dge_modes.unknown,
    oob_mode: Any = oob_modes.error,
) -> Step:
    """`dst = src` with its first and last dimensions exchanged: axes (1, 0), (2, 1, 0) or (3, 1, 2, 0)."""
    _check_dma(("dst", dst), ("src", src))
    dge_mode, oob_mode = _check_modes(priority, dge_mode, oob_mode)
    order = TRANSPOSES.get(src.ndim)
    if order is None:
        raise NkiError(f"src has 2 to 4 dimensions, but is {src.describe()}")
    if axes is not None and tuple(axes) != order:
        raise NkiError(f"axes={tuple(axes)}: {src.ndim} dimensions are transposed by {order}")
    if dst.dtype != src.dtype:
        raise NkiError(f"a transpose keeps the dtype: dst is {dst.dtype}, src {src.dtype}")
    wanted = tuple(src.shape[axis] for axis in order)
    if tuple(dst.shape) != wanted:
        raise NkiError(f"{list(src.shape)} becomes {list(wanted)}, but dst is {dst.describe()}")
    if dst.buffer is not MemoryRegion.sbuf:
        raise NkiError(f"dst must be in SBUF, but is {dst.describe()}")
    _check_transpose_mode(src, dge_mode)

    def transpose() -> None:
        _check_bounds(oob_mode, src)
        dst.write(src.read().reshape(src.shape).transpose(order))

    return Step("dma", (dst,), (src,), transpose, {"transpose": True})


def _check_transpose_mode(src: NkiTensor, dge_mode: Any) -> None:
    is_gather = src.is_indirect() and src.indirection.kind == "vector"
    allowed = (dge_modes.unknown, dge_modes.swdge if is_gather else dge_modes.hwdge)
    if dge_mode not in allowed:
        raise NkiError(f"dge_mode={dge_mode.name}: this transpose takes {' or '.join(mode.name for mode in allowed)}")
    if dge_mode is dge_modes.hwdge:
        rows = src.shape[0]
        fits = rows == 16 if src.ndim == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
        if not fits or src.shape[-1] > 128 or src.dtype.itemsize != 2:
            raise NkiError(
                "dge_mode.hwdge transposes elements of 2 bytes, 16 rows (or rows that make 16 with the dimension "
                f"before the last), and up to 128 columns, not {src.describe()}"
            )


@instruction
def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = oob_modes.error,
) -> Step:
    """`dst = srcs[0] + srcs[1] + ...`, summed in float32 on the way; one of them, or `dst`, may be indexed per row."""
    oob_mode = member(oob_mode, oob_modes)
    _check_dma(("dst", dst), *((f"srcs[{i}]", src) for i, src in enumerate(srcs)))
    if getattr(reduce_op, "name", None) != "add":
        raise NkiError(f"reduce_op is nl.add, but is {reduce_op!r}")
    if scales is not None and (len(scales) != len(srcs) or any(scale != 1.0 for scale in scales)):
        raise NkiError(f"scales are all 1.0, one for each of srcs, but are {scales!r}")
    if not 1 <= len(srcs) <= 16:
        raise NkiError(f"srcs are 1 to 16 tensors, but there are {len(srcs)}")
    for src in srcs:
        if src.size != dst.size:
            raise NkiError(f"srcs and dst have as many elements: {src.describe()} against {dst.describe()}")
    indirect = [tensor for tensor in (dst, *srcs) if tensor.is_indirect()]
    if indirect and (len(srcs) != 2 or not unique_indices):
        raise NkiError("with an indexed tensor there are two srcs, and unique_indices=True")

    def compute() -> None:
        _check_bounds(oob_mode, *indirect)
        values = [to_float32(src.read(), src.dtype).reshape(dst.shape) for src in srcs]
        total = values[0]
        for value in values[1:]:
            total = total + value
        skipped = [in_bounds(src) for src in srcs if src.is_indirect()] if not dst.is_indirect() else []
        if skipped and not all(keep.all() for keep in skipped):
            keep = np.logical_and.reduce(skipped)
            for row in np.flatnonzero(keep):
                dst[int(row) : int(row) + 1].write(total[row])
        else:
            dst.write(total)

    return Step("dma", (dst,), tuple(srcs), compute, {"compute": True})
