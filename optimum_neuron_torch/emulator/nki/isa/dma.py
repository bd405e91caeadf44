"""The DMA engines: copies between HBM and SBUF, transposes on the way, sums on the way.

Sources: the Neuron documentation's API reference (`nki.isa.dma_copy`, `dma_transpose`, `dma_compute`), and its page on
descriptor generation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import to_float32
from ..errors import NkiError
from ..indirect import in_bounds, index_values, scalar_value, scatter
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


def _check_indices(dge_mode: Any, *tensors: NkiTensor) -> None:
    """An index per partition lies in SBUF, from where the GpSimd engine makes descriptors of it."""
    for tensor in tensors:
        if not tensor.has_index("vector"):
            continue
        index = tensor.indirection.index
        if index.buffer is not MemoryRegion.sbuf:
            raise NkiError(f"the indices of a gather or scatter are in SBUF, not {index.describe()}: load them first")
        if dge_mode not in (dge_modes.unknown, dge_modes.swdge):
            raise NkiError(
                f"dge_mode={dge_mode.name}: gathers and scatters ({tensor.describe()}) take swdge, or unknown"
            )


def _check_bounds(oob_mode: Any, *tensors: NkiTensor) -> None:
    for tensor in tensors:
        if tensor.is_indirect() and oob_mode is oob_modes.error and not (inside := in_bounds(tensor)).all():
            raise NkiError(
                f"out of bounds: the dynamic index {_first_outside(tensor, inside)} reaches beyond the "
                f"{tensor.indirection.limit} elements of dimension {tensor.indirection.dim} of {tensor.describe()}; "
                "oob_mode=nisa.oob_mode.skip leaves such rows out"
            )


def _first_outside(tensor: NkiTensor, inside: np.ndarray) -> int:
    """The first of a view's indices that leads out of its tensor."""
    indirection = tensor.indirection
    if indirection.kind == "vector":
        return int(index_values(indirection.index, tensor.shape[0])[inside.argmin()])
    return scalar_value(indirection.index)


def _rows_kept(tensor: NkiTensor, oob_mode: Any) -> np.ndarray | None:
    """Which rows a dynamic index leaves in bounds; None for all, as where the others are an error."""
    if not tensor.is_indirect() or oob_mode is oob_modes.error:
        return None
    inside = in_bounds(tensor)
    return None if inside.all() else inside


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
    _check_indices(dge_mode, dst, src)

    def copy() -> None:
        _check_bounds(oob_mode, dst, src)
        keep = _rows_kept(src, oob_mode)
        if keep is None:
            dst.write(src.read_for(dst))
        else:
            _copy_rows(dst, src, keep)

    return Step("dma", (dst,), (src,), copy)


def _copy_rows(dst: NkiTensor, src: NkiTensor, keep: np.ndarray) -> None:
    """The rows whose index is in bounds; the others of `dst` stay."""
    if not keep.any():
        return
    rows = src.read_for(dst).reshape(src.shape[0], -1)
    if dst.shape[0] != src.shape[0]:
        raise NkiError(f"rows that are skipped need dst to have them as its own: {src.describe()} to {dst.describe()}")
    _write_rows(dst, rows, keep)


def _write_rows(dst: NkiTensor, rows: np.ndarray, keep: np.ndarray) -> None:
    """Those of `rows` that `keep` marks, one for each position of the first dimension."""
    if dst.is_indirect():
        scatter(dst, rows, keep)
        return
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
    if dst.is_indirect():
        raise NkiError(f"dst of a transpose has no dynamic index, but is {dst.describe()}")
    _check_transpose_mode(src, dge_mode)
    _check_indices(dge_mode, src)
    if src.has_index("vector"):
        _check_gather_transpose(src)

    def transpose() -> None:
        _check_bounds(oob_mode, src)
        values = src.read().reshape(src.shape).transpose(order)
        keep = _rows_kept(src, oob_mode)
        if keep is None:
            dst.write(values)
            return
        for row in map(int, np.flatnonzero(keep)):
            dst[..., row : row + 1].write(values[..., row : row + 1])

    return Step("dma", (dst,), (src,), transpose, {"transpose": True})


def _check_transpose_mode(src: NkiTensor, dge_mode: Any) -> None:
    if dge_mode is dge_modes.swdge and not src.is_indirect():
        raise NkiError("dge_mode.swdge transposes what an index chooses; without one, hwdge, none or unknown")
    if dge_mode is dge_modes.hwdge:
        rows = src.shape[0]
        fits = rows == 16 if src.ndim == 2 else rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0
        if not fits or src.shape[-1] > 128 or src.dtype.itemsize != 2:
            raise NkiError(
                "dge_mode.hwdge transposes elements of 2 bytes, 16 rows (or rows that make 16 with the dimension "
                f"before the last), and up to 128 columns, not {src.describe()}"
            )


def _check_gather_transpose(src: NkiTensor) -> None:
    """What the transposes of rows that an index chooses take."""
    needs_generation(3, "a transpose of indexed rows")
    index, rows = src.indirection.index, src.shape[0]
    if src.dtype.itemsize != 2 or src.shape[-1] > 128 or rows % 16:
        raise NkiError(
            "indexed rows are transposed with elements of 2 bytes, up to 128 in the last dimension, and a multiple of "
            f"16 rows, not {src.describe()}"
        )
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        raise NkiError(f"of four dimensions the second or the third has one element, but src is {src.describe()}")
    if index.dtype not in ("uint32", "int32"):  # documented as uint32; public kernels pass int32, too
        raise NkiError(f"the indices are uint32, but are {index.describe()}")
    partitions, columns = index.shape[0], index.free_size
    if index.ndim != 2 or partitions % 16 or (columns > 1 and partitions != 128) or index.size < rows:
        raise NkiError(
            "the indices have two dimensions, a multiple of 16 partitions (128 where there are several columns), and "
            f"one for each of the {rows} rows, but are {index.describe()}"
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
    if not isinstance(srcs, (list, tuple)) or not 1 <= len(srcs) <= 16:
        raise NkiError(f"srcs is a list of 1 to 16 tensors, but is {srcs!r}")
    _check_dma(("dst", dst), *((f"srcs[{i}]", src) for i, src in enumerate(srcs)))
    if getattr(reduce_op, "name", None) != "add":
        raise NkiError(f"reduce_op is nl.add, but is {reduce_op!r}")
    if scales is not None and (len(scales) != len(srcs) or any(scale != 1.0 for scale in scales)):
        raise NkiError(f"scales are all 1.0, one for each of srcs, but are {scales!r}")
    for src in srcs:
        if src.size != dst.size:
            raise NkiError(f"srcs and dst have as many elements: {src.describe()} against {dst.describe()}")
    indirect = [tensor for tensor in (dst, *srcs) if tensor.is_indirect()]
    if indirect:
        _check_read_modify_write(dst, srcs, unique_indices)

    def compute() -> None:
        _check_bounds(oob_mode, *indirect)
        total = to_float32(srcs[0].read(), srcs[0].dtype).reshape(dst.shape)
        for src in srcs[1:]:
            total = total + to_float32(src.read(), src.dtype).reshape(dst.shape)
        if dst.is_indirect():
            _check_unique(dst)
        keep = _rows_kept(indirect[0], oob_mode) if indirect else None
        if keep is None:
            dst.write(total)
        else:
            _write_rows(dst, total, keep)

    return Step("dma", (dst,), tuple(srcs), compute, {"compute": True})


def _check_read_modify_write(dst: NkiTensor, srcs: Sequence[NkiTensor], unique_indices: bool) -> None:
    """Either `dst[indices] += src` in HBM, with src in SBUF, or `dst += src[indices]` in SBUF, with src in HBM."""
    if len(srcs) != 2 or unique_indices is not True:
        raise NkiError("with an indexed tensor there are two srcs, and unique_indices=True")
    other = [src for src in srcs if not _is_same(src, dst)]
    if len(other) != 1 or not any(tensor.has_index("vector") for tensor in (dst, *other)):
        raise NkiError(
            "with an indexed tensor one of srcs is dst itself, and the other or both dst and it have a vector_offset: "
            f"dst is {dst.describe()}, srcs are {', '.join(src.describe() for src in srcs)}"
        )
    if dst.has_index("vector") == other[0].is_indirect():
        raise NkiError("either dst (and the source that is the same) has a vector_offset, or the other source")
    on_chip = other[0] if dst.has_index("vector") else dst
    if on_chip.buffer is not MemoryRegion.sbuf:
        raise NkiError(f"what has no vector_offset is in SBUF, but is {on_chip.describe()}")
    _check_indices(dge_modes.swdge, dst, other[0])


def _is_same(first: NkiTensor, second: NkiTensor) -> bool:
    """Whether both are the same elements, by the same index if there is one."""
    if first.storage is not second.storage or first.place != second.place:
        return False
    one, two = first.indirection, second.indirection
    if one is None or two is None:
        return one is two
    return one.kind == two.kind and (one.index is two.index or _is_same(one.index, two.index))


def _check_unique(dst: NkiTensor) -> None:
    chosen = index_values(dst.indirection.index, dst.shape[0])[in_bounds(dst)]
    values, counts = np.unique(chosen, return_counts=True)
    if (counts > 1).any():
        raise NkiError(
            f"index {values[counts > 1][0]} is given more than once, and unique_indices=True: what becomes of rows "
            "that are added to twice is undefined"
        )
