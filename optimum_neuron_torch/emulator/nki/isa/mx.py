"""Microscaling formats: quantising to them, and multiplying them (NeuronCore-v4).

A group of 32 values, 8 partitions by 4 elements, shares a scale, which is a power of two. Four elements are packed in
one. The scales of 32 partitions of data lie in the first 4 partitions of their quadrant; those of up to 32 partitions
in as many as they need. Sources: `nki.isa.quantize_mx` and `nki.isa.nc_matmul_mx` in the Neuron documentation's API
reference; the OCP Microscaling Formats specification 1.0 for element and scale types.
"""

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ..core import current
from ..dtypes import DType
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .matmul import store_product
from .operands import in_buffer, needs_generation, on_chip


GROUP_PARTITIONS = 8
PACKED = 4
QUADRANT = 32
SCALES_PER_QUADRANT = QUADRANT // GROUP_PARTITIONS
SCALE_OFFSETS = (0, 4, 8, 12)  # in a quadrant, so that four tensors' scales fit ("Packing Scale Values")
SCALE_BIAS = 127
SCALE_NAN = 255
# Largest exponents of the element types.
LARGEST_EXPONENT = {"float8_e4m3fn_x4": 8, "float8_e5m2_x4": 15}
ELEMENTS = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}
SCALE_DTYPES = ("float8_e8m0fnu", "uint8")


@instruction
def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor) -> Step:
    """`dst` and `dst_scale` such that `dst * 2**(dst_scale - 127)` is `src`, rounded."""
    needs_generation(4, "quantize_mx")
    on_chip(dst, src)
    in_buffer(dst, MemoryRegion.sbuf, role="dst")
    in_buffer(src, MemoryRegion.sbuf, role="src")
    if src.dtype not in ("float16", "bfloat16"):
        raise NkiError(f"src is float16 or bfloat16, but is {src.describe()}")
    if dst.dtype not in LARGEST_EXPONENT:
        raise NkiError(f"dst is {' or '.join(LARGEST_EXPONENT)}, but is {dst.describe()}")
    partitions, elements = src.shape[0], src.free_size
    if partitions % QUADRANT or elements % PACKED:
        raise NkiError(
            f"src has a multiple of {QUADRANT} partitions and of {PACKED} elements in each, but is {src.describe()}"
        )
    if dst.shape[0] != partitions or dst.free_size * PACKED != elements:
        raise NkiError(
            f"dst packs {PACKED} elements of src in one, but they are {dst.describe()} and {src.describe()}"
        )
    _check_scales(dst_scale, "dst_scale", dst)

    def quantize() -> None:
        groups = src.read_float32().reshape(partitions // GROUP_PARTITIONS, GROUP_PARTITIONS, -1, PACKED)
        largest = np.abs(groups).max(axis=(1, 3))
        exponent = (largest.view(np.uint32) >> np.uint32(23)).astype(np.int32)  # biased as the scale's is
        scales = np.clip(exponent - (LARGEST_EXPONENT[dst.dtype] - 1), 0, SCALE_NAN - 1)
        scales[exponent == SCALE_NAN] = SCALE_NAN
        factors = np.exp2((SCALE_BIAS - scales).astype(np.float32))
        scaled = (groups * factors[:, None, :, None]).reshape(partitions, -1)
        dst.write(_packed(scaled, dst.dtype))
        _write_scales(dst_scale, scales.astype(np.uint8), partitions)

    return Step("vector", (dst, dst_scale), (src,), quantize)


def _packed(values: np.ndarray, dtype: DType) -> np.ndarray:
    elements = np.ascontiguousarray(values.astype(ELEMENTS[dtype]))
    return elements.view(np.uint8).view(dtype.storage)


def unpacked(tensor: NkiTensor) -> np.ndarray:
    """The elements of a packed tensor as float32 (partitions, packed elements, 4)."""
    stored = np.ascontiguousarray(tensor.read().reshape(tensor.shape[0], -1))
    if tensor.dtype == "float4_e2m1fn_x4":
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        nibbles = (stored[..., None] >> shifts & np.uint16(0xF)).astype(np.uint8)
        values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        return values[nibbles]
    return stored.view(ELEMENTS[tensor.dtype]).astype(np.float32).reshape(*stored.shape, PACKED)


def _scale_rows(partitions: int) -> np.ndarray:
    """The partitions in which the scales of so many partitions of data lie."""
    groups = np.arange(partitions // GROUP_PARTITIONS)
    return groups // SCALES_PER_QUADRANT * QUADRANT + groups % SCALES_PER_QUADRANT


def _check_scales(scales: NkiTensor, role: str, data: NkiTensor) -> None:
    if not isinstance(scales, NkiTensor):
        raise NkiError(f"{role} must be a tensor in SBUF, but is {scales!r}")
    in_buffer(scales, MemoryRegion.sbuf, role=role)
    # Other tensors' scales may share the quadrants, so these accesses start where no other may.
    if scales.start_partition % QUADRANT not in SCALE_OFFSETS:
        raise NkiError(
            f"{role} starts at partition {', '.join(map(str, SCALE_OFFSETS))} of a quadrant, but at partition "
            f"{scales.start_partition} ({scales.describe()})"
        )
    if scales.dtype not in SCALE_DTYPES:
        raise NkiError(f"{role} is {' or '.join(SCALE_DTYPES)}, but is {scales.describe()}")
    needed = int(_scale_rows(data.shape[0])[-1]) + 1
    if scales.shape[0] < needed or scales.free_size != data.free_size:
        raise NkiError(
            f"{role} needs {needed} partitions (the scales of every {QUADRANT} partitions of data lie in the first "
            f"{SCALES_PER_QUADRANT} of a quadrant) of {data.free_size} elements, but is {scales.describe()}"
        )


def _write_scales(dst_scale: NkiTensor, scales: np.ndarray, partitions: int) -> None:
    stored = scales.view(dst_scale.dtype.storage)
    for first in range(0, partitions, QUADRANT):
        groups = slice(first // GROUP_PARTITIONS, (first + QUADRANT) // GROUP_PARTITIONS)
        dst_scale[first : first + SCALES_PER_QUADRANT].write(stored[groups])


def _dequantized(data: NkiTensor, scales: NkiTensor) -> np.ndarray:
    """float32 (partitions * 4, packed elements): what the systolic array sums over leads."""
    partitions = data.shape[0]
    rows = [
        scales[first : first + min(SCALES_PER_QUADRANT, (partitions - first) // GROUP_PARTITIONS)].read()
        for first in range(0, partitions, QUADRANT)
    ]
    exponents = np.concatenate([row.reshape(row.shape[0], -1) for row in rows]).view(np.uint8)
    factors = np.exp2(exponents.astype(np.float32) - np.float32(SCALE_BIAS))
    factors[exponents == SCALE_NAN] = np.nan
    values = unpacked(data) * np.repeat(factors, GROUP_PARTITIONS, axis=0)[..., None]
    return values.transpose(0, 2, 1).reshape(partitions * PACKED, -1)


@instruction
def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Sequence[int] | None = None,
    tile_size: Sequence[int] | None = None,
    accumulate: bool | None = None,
) -> Step:
    """`dst = stationary.T @ moving`, both packed and scaled, summed over partitions and packed elements in float32."""
    needs_generation(4, "nc_matmul_mx")
    on_chip(dst, stationary, moving)
    in_buffer(dst, MemoryRegion.psum, role="dst")
    pairs = ((stationary, stationary_scale, "stationary"), (moving, moving_scale, "moving"))
    for data, scales, role in pairs:
        in_buffer(data, MemoryRegion.sbuf, role=role)
        if data.dtype not in ELEMENTS:
            raise NkiError(f"{role} is {', '.join(ELEMENTS)}, but is {data.describe()}")
        _check_scales(scales, f"{role}_scale", data)
    k, m, n = stationary.shape[0], stationary.free_size, moving.free_size
    rows = _row_tile(tile_position, tile_size)
    if moving.shape[0] != k or k % QUADRANT or k > rows:
        raise NkiError(
            f"stationary and moving have the same number of partitions, a multiple of {QUADRANT} up to {rows}, but "
            f"have {k} and {moving.shape[0]}"
        )
    if m % 2 or m > 128:
        raise NkiError(f"stationary has an even number of elements per partition up to 128, but has {m}")
    if dst.dtype not in ("float32", "bfloat16"):
        raise NkiError(f"dst is float32 or bfloat16, but is {dst.describe()}")
    limit = current().run.chip.moving_free_max * (2 if dst.dtype == "bfloat16" else 1)
    if n > limit:
        raise NkiError(f"moving has {n} elements per partition, and the limit is {limit}")
    if dst.shape[0] != m or dst.free_size != n:
        raise NkiError(f"the product is ({m}, {n}), but dst is {dst.describe()}")

    def multiply() -> None:
        product = _dequantized(stationary, stationary_scale).T @ _dequantized(moving, moving_scale)
        store_product(dst, product, accumulate)

    reads = (stationary, moving, stationary_scale, moving_scale, *((dst,) if accumulate else ()))
    detail = {"k": k * PACKED, "m": m, "n": n, "mx": True, "tile_size": tuple(tile_size or ())}
    return Step("tensor", (dst,), reads, multiply, detail)


def _row_tile(position: Sequence[int] | None, size: Sequence[int] | None) -> int:
    """How many rows of the systolic array the multiplication uses."""
    if bool(position) != bool(size):
        raise NkiError("tile_position and tile_size are given together, or neither is")
    if not size:
        return 128
    (start_row, start_column), (rows, columns) = position, size
    if rows not in (32, 64, 128) or columns != 128:
        raise NkiError(f"tile_size {tuple(size)}: 32, 64 or 128 rows and 128 columns")
    if start_column != 0 or start_row % rows or not 0 <= start_row < 128:
        raise NkiError(f"tile_position {tuple(position)}: a multiple of {rows} rows below 128, and column 0")
    return rows
