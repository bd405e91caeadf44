"""Moving elements within SBUF to where indices say."""

from typing import Any

import numpy as np

from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .operands import constant, has_dtype, in_buffer, on_chip


_GPSIMD_LANES = 16  # partitions of one of GpSimd's eight cores
_QUADRANT = 32
_UNMODIFIED = 255


def _check_gathered(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, names: tuple[str, str, str]) -> None:
    on_chip(dst, data, indices)
    for tensor, role in zip((dst, data, indices), names, strict=True):
        in_buffer(tensor, MemoryRegion.sbuf, role=f"{role} (GpSimd cannot access PSUM)")
    if dst.dtype != data.dtype:
        raise NkiError(
            f"gathering casts nothing: {names[0]} has the dtype of {names[1]}, but they are {dst.describe()} and "
            f"{data.describe()}"
        )
    if not dst.shape[0] == data.shape[0] == indices.shape[0]:
        raise NkiError(
            f"{', '.join(names)} have the same number of partitions, but here {dst.shape[0]}, {data.shape[0]} and "
            f"{indices.shape[0]}"
        )


@instruction
def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor) -> Step:
    """`dst[p, i] = data[p, indices[p, i]]`, the free dimensions taken as one."""
    _check_gathered(dst, data, indices, ("dst", "data", "indices"))
    has_dtype(indices, "indices", "uint32")
    if dst.free_size != indices.free_size:
        raise NkiError(
            f"dst has as many elements per partition as indices, but {dst.free_size} and {indices.free_size}"
        )

    def gather() -> None:
        partitions = data.shape[0]
        chosen = indices.read().reshape(partitions, -1)
        if chosen.max() >= data.free_size:
            raise NkiError(
                f"out of bounds: index {chosen.max()} into {data.free_size} elements per partition ({data.describe()})"
            )
        dst.write(np.take_along_axis(data.read().reshape(partitions, -1), chosen, axis=1))

    return Step("gpsimd", (dst,), (data, indices), gather)


@instruction
def local_gather(
    dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: Any = 1, num_valid_indices: Any = None
) -> Step:
    """On each of GpSimd's cores, gathers with the indices of its 16 partitions, from each of them.

    The indices are taken column by column; each is the first of `num_elem_per_idx` elements.
    """
    _check_gathered(dst, src_buffer, index, ("dst", "src_buffer", "index"))
    has_dtype(index, "index", "uint16")
    partitions = src_buffer.shape[0]
    if partitions % _GPSIMD_LANES:
        raise NkiError(f"src_buffer has {partitions} partitions, no multiple of {_GPSIMD_LANES}")
    if num_elem_per_idx not in (1, 2, 4, 8, 16, 32):
        raise NkiError(f"num_elem_per_idx is 1, 2, 4, 8, 16 or 32, not {num_elem_per_idx!r}")
    available = index.free_size * _GPSIMD_LANES
    if num_valid_indices is None:
        count = available
    else:
        count = int(constant(num_valid_indices, "num_valid_indices", is_integer=True))
    if not 1 <= count <= available:
        raise NkiError(f"num_valid_indices={count}: the 16 partitions of a core have {available} indices")
    if count > 4096:
        raise NkiError(f"{count} indices per core: the limit is 4096; gather in parts")
    if dst.free_size != count * num_elem_per_idx:
        raise NkiError(
            f"{count} indices of {num_elem_per_idx} elements give {count * num_elem_per_idx} per partition, and dst "
            f"has {dst.free_size}"
        )

    def gather() -> None:
        data = src_buffer.read().reshape(partitions, -1)
        # By core: indices along the partitions first.
        chosen = index.read().reshape(-1, _GPSIMD_LANES, index.free_size)
        chosen = chosen.transpose(0, 2, 1).reshape(len(chosen), -1)[:, :count].astype(np.int64)
        if chosen.max() + num_elem_per_idx > data.shape[1]:
            raise NkiError(
                f"out of bounds: index {chosen.max()} and {num_elem_per_idx} elements from there on, of "
                f"{data.shape[1]} per partition ({src_buffer.describe()})"
            )
        chosen = (chosen[:, :, None] + np.arange(num_elem_per_idx)).reshape(len(chosen), -1)
        dst.write(np.take_along_axis(data, np.repeat(chosen, _GPSIMD_LANES, axis=0), axis=1))

    return Step("gpsimd", (dst,), (src_buffer, index), gather)


@instruction
def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any) -> Step:
    """In each 32 partitions, partition i of `dst` becomes partition `shuffle_mask[i]` of `src`; 255 leaves it."""
    on_chip(dst, src)
    if dst.dtype != src.dtype or dst.free_size != src.free_size:
        raise NkiError(
            f"dst has the dtype and the number of elements per partition of src, but they are {dst.describe()} and "
            f"{src.describe()}"
        )
    mask = _shuffle_mask(shuffle_mask)
    _check_start_partitions(dst, src)
    targets = [p for p in range(dst.shape[0]) if mask[p % _QUADRANT] != _UNMODIFIED]
    sources = [p - p % _QUADRANT + mask[p % _QUADRANT] for p in targets]
    if sources and max(sources) >= src.shape[0]:
        raise NkiError(
            f"partition {targets[sources.index(max(sources))]} of dst would be partition {max(sources)} of src, "
            f"which has {src.shape[0]} ({src.describe()})"
        )

    def shuffle() -> None:
        values = src.read().reshape(src.shape[0], *dst.shape[1:])
        moved = values[np.minimum(_all_sources(mask, dst.shape[0]), src.shape[0] - 1)]
        if len(targets) == dst.shape[0]:
            dst.write(moved)
        else:
            is_moved = np.zeros((dst.shape[0], *(1,) * (dst.ndim - 1)), bool)
            is_moved[targets] = True
            dst.write_where(is_moved, moved)

    return Step("vector", (dst,), (src,), shuffle)


def _all_sources(mask: list[int], partitions: int) -> np.ndarray:
    """For each partition the one it is copied from; any for those that stay."""
    return np.arange(partitions) // _QUADRANT * _QUADRANT + np.resize(np.array(mask) % _UNMODIFIED, partitions)


def _shuffle_mask(given: Any) -> list[int]:
    try:
        mask = [int(constant(entry, "an entry of shuffle_mask", is_integer=True)) for entry in given]
    except TypeError:
        raise NkiError(f"shuffle_mask is a list of 32 integers, but got {given!r}") from None
    wrong = [entry for entry in mask if not 0 <= entry < _QUADRANT and entry != _UNMODIFIED]
    if len(mask) != _QUADRANT or wrong:
        what = f"it holds {wrong[0]}" if wrong else f"it has {len(mask)}"
        raise NkiError(f"shuffle_mask has 32 entries, each 0 to 31 or 255 (partition unmodified); {what}")
    return mask


def _check_start_partitions(dst: NkiTensor, src: NkiTensor) -> None:
    """Whole quadrants take part, as many as the larger of the two needs."""
    active = -(-max(dst.shape[0], src.shape[0]) // _QUADRANT) * _QUADRANT
    allowed = (0,) if active > 64 else (0, 64) if active == 64 else (0, 32, 64, 96)
    for tensor, role in ((dst, "dst"), (src, "src")):
        if tensor.start_partition not in allowed:
            raise NkiError(
                f"{role} starts at partition {tensor.start_partition}: a shuffle of {active} partitions starts at "
                f"{' or '.join(map(str, allowed))} ({tensor.describe()})"
            )
