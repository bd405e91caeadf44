"""Data that moves between places of a tile: shuffles and gathers."""

from collections.abc import Sequence

import numpy as np

from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .operands import in_buffer, on_chip, same_elements


QUADRANT = 32
KEEP = 255


@instruction
def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int]) -> Step:
    """Within every 32 partitions `dst[i] = src[shuffle_mask[i]]`; 255 leaves `dst[i]`."""
    on_chip(dst, src)
    mask = [int(entry) for entry in shuffle_mask]
    if len(mask) != QUADRANT or any(entry != KEEP and not 0 <= entry < QUADRANT for entry in mask):
        raise NkiError(f"shuffle_mask has {QUADRANT} entries from 0 to {QUADRANT - 1}, or {KEEP}, but is {mask}")
    if dst.dtype != src.dtype:
        raise NkiError(f"dst and src have one dtype, but are {dst.dtype} and {src.dtype}")
    if dst.free_size != src.free_size:
        raise NkiError(f"dst and src have as many elements per partition, but are {dst.describe()}, {src.describe()}")

    def shuffle() -> None:
        rows = [row for row in range(dst.shape[0]) if mask[row % QUADRANT] != KEEP]
        sources = [row // QUADRANT * QUADRANT + mask[row % QUADRANT] for row in rows]
        missing = [source for source in sources if source >= src.shape[0]]
        if missing:
            raise NkiError(f"shuffle_mask reads partition {missing[0]} of {src.describe()}")
        values = src.read().reshape(src.shape[0], -1)
        if len(rows) == dst.shape[0]:
            dst.write(values[sources])
        else:
            for row, source in zip(rows, sources, strict=True):
                dst[row : row + 1].write(values[source].copy())

    return Step("vector", (dst,), (src,), shuffle)


@instruction
def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor) -> Step:
    """In every partition `dst[i] = data[indices[i]]`, over flattened free dimensions."""
    on_chip(dst, data, indices)
    for tensor, role in ((dst, "dst"), (data, "data"), (indices, "indices")):
        in_buffer(tensor, MemoryRegion.sbuf, role=role)
    same_elements(dst, indices)
    if data.shape[0] != dst.shape[0]:
        raise NkiError(f"data has {data.shape[0]} partitions and dst {dst.shape[0]}")
    if indices.dtype != "uint32" or dst.dtype != data.dtype:
        raise NkiError(
            f"indices are uint32, and dst and data of one dtype: {indices.dtype}, {dst.dtype}, {data.dtype}"
        )

    def gather() -> None:
        at = indices.read().reshape(dst.shape[0], -1).astype(np.int64)
        if at.size and at.max() >= data.free_size:
            raise NkiError(f"out of bounds: index {at.max()} into {data.free_size} elements of {data.describe()}")
        dst.write(np.take_along_axis(data.read().reshape(dst.shape[0], -1), at, axis=1))

    return Step("gpsimd", (dst,), (data, indices), gather)


@instruction
def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
) -> Step:
    """Each group of 16 partitions gathers from itself, all with the indices that the group holds."""
    on_chip(dst, src_buffer, index)
    for tensor, role in ((dst, "dst"), (src_buffer, "src_buffer"), (index, "index")):
        in_buffer(tensor, MemoryRegion.sbuf, role=role)
    partitions = src_buffer.shape[0]
    if partitions % 16 or index.shape[0] != partitions:
        raise NkiError(
            f"src_buffer and index have the same multiple of 16 partitions, not {partitions}, {index.shape[0]}"
        )
    if index.dtype != "uint16" or dst.dtype != src_buffer.dtype:
        raise NkiError(
            f"index is uint16, and dst of src_buffer's dtype: {index.dtype}, {dst.dtype}, {src_buffer.dtype}"
        )
    if num_elem_per_idx not in (1, 2, 4, 8, 16, 32):
        raise NkiError(f"num_elem_per_idx={num_elem_per_idx}: 1, 2, 4, 8, 16 or 32")
    held = index.size // (partitions // 16)
    count = held if num_valid_indices is None else num_valid_indices
    if count > min(held, 4096):
        raise NkiError(f"{count} indices per group, of {held} that it holds and 4096 at most")
    if dst.shape[0] != partitions or dst.free_size < count * num_elem_per_idx:
        raise NkiError(f"{count} x {num_elem_per_idx} elements per partition into {dst.describe()}")

    def gather() -> None:
        values = src_buffer.read().reshape(partitions, -1)
        groups = index.read().reshape(partitions // 16, 16, -1).transpose(0, 2, 1).reshape(partitions // 16, -1)
        at = groups[:, :count].astype(np.int64)
        at = (at[:, :, None] * num_elem_per_idx + np.arange(num_elem_per_idx)).reshape(len(at), -1)
        if at.size and at.max() >= values.shape[1]:
            raise NkiError(f"out of bounds: element {at.max()} of {values.shape[1]} ({src_buffer.describe()})")
        gathered = np.take_along_axis(values, np.repeat(at, 16, axis=0), axis=1)
        free = dst.reshape((partitions, dst.free_size))
        free[:, : gathered.shape[1]].write(gathered)

    return Step("gpsimd", (dst,), (src_buffer, index), gather)
