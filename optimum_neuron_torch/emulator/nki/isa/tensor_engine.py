"""The Tensor Engine: matrix multiplication into PSUM, and transposes.

Sources: `nki.isa.nc_matmul` and `nki.isa.nc_transpose` in the Neuron documentation's API reference; the tile sizes of
the systolic array in its NKI architecture guides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import current
from ..dtypes import DType
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import engine as engines
from .constants import matmul_perf_mode
from .matmul import mark_accumulated
from .matmul import multiply as multiply_tiles
from .operands import in_buffer, member, on_chip


FLOAT8 = ("float8_e4m3", "float8_e5m2", "float8_e4m3fn")
MATMUL_DTYPES = ("bfloat16", "float16", "float32", "tfloat32", *FLOAT8)
WIDE = ("float32", "tfloat32")


@instruction
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    perf_mode: Any = matmul_perf_mode.none,
) -> Step:
    """`dst_MN = stationary_KM.T @ moving_KN`, summed in float32, or added to what matmuls have put there before.

    With `perf_mode=double_row` the operands are (K / 2, 2, M) and (K / 2, 2, N) in float8.
    """
    on_chip(dst, stationary, moving)
    in_buffer(dst, MemoryRegion.psum, role="dst")
    in_buffer(stationary, MemoryRegion.sbuf, role="stationary")
    in_buffer(moving, MemoryRegion.sbuf, role="moving")
    doubles = member(perf_mode, matmul_perf_mode) is matmul_perf_mode.double_row
    if accumulate is not None and not isinstance(accumulate, (bool, np.bool_)):
        raise NkiError(f"accumulate is True, False or None, but is {accumulate!r}")
    _check_dtypes(dst, stationary, moving, doubles, is_transpose)
    k, m, n = _sizes(stationary, moving, doubles)
    _check_tile(k // 2 if doubles else k, m, tile_position, tile_size, doubles)
    _check_result(dst, m, n)
    _check_indirect(dst, moving, stationary, tile_position, is_transpose, accumulate)

    def multiply() -> None:
        if is_transpose and current().run.chip.generation >= 3:
            dst.write(stationary.read().reshape(k, m).T)
            mark_accumulated(dst)
            return
        multiply_tiles(dst, stationary, moving, (k, m, n), accumulate)

    detail = {"k": k, "m": m, "n": n, "double_row": doubles, "transpose": bool(is_transpose)}
    detail |= {"onezero": bool(is_stationary_onezero or is_moving_onezero), "tile_size": tuple(tile_size)}
    reads = (stationary, moving, dst) if accumulate else (stationary, moving)
    return Step("tensor", (dst,), reads, multiply, detail)


def _sizes(stationary: NkiTensor, moving: NkiTensor, doubles: bool) -> tuple[int, int, int]:
    """(K, M, N) of the product."""
    if moving.shape[0] != stationary.shape[0]:
        raise NkiError(
            f"stationary has {stationary.shape[0]} partitions and moving {moving.shape[0]}: the contraction runs "
            f"along the partitions of both ({stationary.describe()}, {moving.describe()})"
        )
    if not doubles:
        return stationary.shape[0], stationary.free_size, moving.free_size
    for tensor, role in ((stationary, "stationary"), (moving, "moving")):
        if tensor.ndim < 3 or tensor.shape[1] != 2:
            raise NkiError(
                f"double_row splits the contraction over the partitions and a first free dimension of 2, but {role} "
                f"is {tensor.describe()}"
            )
    return 2 * stationary.shape[0], stationary.free_size // 2, moving.free_size // 2


def _check_dtypes(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, doubles: bool, is_transpose: bool) -> None:
    generation = current().run.chip.generation
    pair: tuple[DType, DType] = (stationary.dtype, moving.dtype)
    for dtype in pair:
        if dtype not in MATMUL_DTYPES and not is_transpose:
            raise NkiError(f"the Tensor Engine multiplies {', '.join(MATMUL_DTYPES)}, not {dtype}")
        if dtype == "float8_e4m3fn" and generation < 4:
            raise NkiError("float8_e4m3fn needs NeuronCore-v4; float8_e4m3 is what NeuronCore-v3 has")
    if is_transpose and generation >= 3:
        if dst.dtype != stationary.dtype:
            raise NkiError(f"a transpose keeps the dtype: dst is {dst.dtype}, stationary {stationary.dtype}")
        return
    if (pair[0] in WIDE) != (pair[1] in WIDE):
        raise NkiError(
            f"stationary is {pair[0]} and moving {pair[1]}: float32 and tfloat32 multiply only with each other; copy "
            "one operand to the other's dtype first, with nisa.tensor_copy"
        )
    if "float8_e4m3" in pair and "float8_e4m3fn" in pair:
        raise NkiError("float8_e4m3 and float8_e4m3fn cannot be mixed in one matmul")
    results = ("float32", "bfloat16") if generation >= 4 else ("float32",)
    if dst.dtype not in results:
        raise NkiError(f"dst is {dst.dtype}: {current().run.chip.name} writes {' or '.join(results)}")
    if doubles:
        if generation < 3:
            raise NkiError("perf_mode=double_row needs NeuronCore-v3 or later")
        if not all(dtype in FLOAT8 for dtype in pair):
            raise NkiError(f"perf_mode=double_row multiplies float8, not {pair[0]} and {pair[1]}")


def _check_tile(k: int, m: int, position: Sequence[int], size: Sequence[int], doubles: bool) -> None:
    """The operands fit the systolic array, or the part of it that is chosen."""
    chip = current().run.chip
    if bool(position) != bool(size):
        raise NkiError("tile_position and tile_size are given together, or neither is")
    rows, columns = (int(n) for n in size) if size else (chip.array_rows, chip.array_columns)
    if size:
        sizes = (32, 64, 128) if chip.generation >= 3 else (64, 128)
        start_row, start_column = (int(n) for n in position)
        if rows not in sizes or columns not in sizes:
            raise NkiError(f"tile_size {(rows, columns)}: {chip.name} has tiles of {', '.join(map(str, sizes))}")
        if start_row % rows or start_column % columns or start_row >= 128 or start_column >= 128:
            raise NkiError(
                f"tile_position {(start_row, start_column)} is no multiple of tile_size {(rows, columns)} below 128"
            )
        if doubles and columns != 128:
            raise NkiError("perf_mode=double_row does not combine with column tiles: tile_size is (rows, 128)")
    if k > rows:
        raise NkiError(f"the contraction is over {k} partitions, and the limit is {rows}")
    if m > columns:
        raise NkiError(
            f"stationary has {m} elements per partition, and the limit is {columns}: split it, each part with its own "
            "partitions of dst"
        )


def _check_result(dst: NkiTensor, m: int, n: int) -> None:
    chip = current().run.chip
    if dst.shape[0] != m or dst.free_size != n:
        raise NkiError(
            f"the product is ({m}, {n}): stationary's elements per partition by moving's; dst is {dst.describe()}"
        )
    limit = chip.moving_free_max * (2 if chip.generation >= 4 and dst.dtype == "bfloat16" else 1)
    if n > limit:
        raise NkiError(f"moving has {n} elements per partition, and the limit is {limit}: split it")
    if chip.generation < 4:
        check_bank(dst)


def _check_indirect(
    dst: NkiTensor,
    moving: NkiTensor,
    stationary: NkiTensor,
    tile_position: Sequence[int],
    is_transpose: bool,
    accumulate: bool | None,
) -> None:
    """What a multiplication with views made by `indirect` may not be."""
    views = [tensor for tensor in (dst, moving, stationary) if tensor.has_index("free")]
    if not views:
        return
    if tuple(tile_position) not in ((), (0, 0)):
        raise NkiError("views made by indirect() do not combine with tile_position")
    if is_transpose and moving in views:
        raise NkiError("moving of a transpose does not take a view made by indirect()")
    for tensor in views:
        if tensor.dtype in WIDE and tensor is not dst:
            raise NkiError(
                f"views made by indirect() are of 16 or 8 bits for the Tensor Engine, not {tensor.describe()}"
            )
    if dst in views and accumulate is None:
        raise NkiError("dst is a view made by indirect(): give accumulate=True or False")


def check_bank(dst: NkiTensor) -> None:
    """On NeuronCore-v2 and -v3 a matmul writes inside one PSUM bank."""
    bank = current().run.chip.psum_bank_bytes
    start = dst.start_byte
    spans = zip(dst.shape[1:], dst.byte_strides[1:], strict=True)
    stop = start + sum((size - 1) * stride for size, stride in spans) + dst.dtype.itemsize
    if start // bank != (stop - 1) // bank:
        raise NkiError(
            f"dst covers bytes {start} to {stop} of its partitions, and a matmul writes inside one PSUM bank of "
            f"{bank} bytes ({dst.describe()})"
        )


TRANSPOSE_LIMITS = {"tensor": 128, "vector": 32}


@instruction
def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Any = engines.unknown) -> Step:
    """`dst = data.T`, of partitions by elements: up to 128 x 128 on the Tensor, 32 x 32 on the Vector engine."""
    on_chip(dst, data)
    rows, columns = data.shape[0], data.free_size
    if engine is engines.unknown:
        fits_vector = max(rows, columns) <= TRANSPOSE_LIMITS["vector"]
        can_use_tensor = dst.buffer is MemoryRegion.psum and data.buffer is MemoryRegion.sbuf
        name = "tensor" if can_use_tensor or not fits_vector else "vector"
    elif engine in (engines.tensor, engines.vector):
        name = engine.name
    else:
        raise NkiError(f"engine={engine!r}: the Tensor and the Vector Engine transpose")
    if name == "tensor":
        in_buffer(data, MemoryRegion.sbuf, role="data of the Tensor Engine's transpose")
        in_buffer(dst, MemoryRegion.psum, role="dst of the Tensor Engine's transpose")
    limit = TRANSPOSE_LIMITS[name]
    if max(rows, columns) > limit:
        raise NkiError(
            f"data is {rows} x {columns}, and the {name.capitalize()} Engine transposes up to {limit} x {limit}"
        )
    if dst.dtype != data.dtype:
        raise NkiError(f"a transpose keeps the dtype: dst is {dst.dtype}, data {data.dtype}")
    if dst.shape[0] != columns or dst.free_size != rows:
        raise NkiError(f"{rows} x {columns} becomes {columns} x {rows}, but dst is {dst.describe()}")

    def transpose() -> None:
        dst.write(data.read().reshape(rows, columns).T)
        if dst.buffer is MemoryRegion.psum and name == "tensor":
            mark_accumulated(dst)

    detail = {"k": rows, "m": columns, "n": rows, "transpose": True} if name == "tensor" else None
    return Step(name, (dst,), (data,), transpose, detail)
