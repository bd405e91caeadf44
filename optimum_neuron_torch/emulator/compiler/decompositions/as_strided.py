"""`as_strided` and its scatter on a compact tensor, as a gather at computed positions.

AOTAutograd takes views of one base apart with them; with the positions as a constant they lower to what XLA does not
run, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


aten = torch.ops.aten


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    offset = x.storage_offset() if storage_offset is None else storage_offset
    if offset == x.storage_offset() and _has_layout(x, size, stride):
        return aten.clone.default(x)
    if not _is_compact(x):
        return NotImplemented
    return x.reshape(-1)[_positions(x, size, stride, offset)].reshape(size)


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    if not _is_compact(x):
        return NotImplemented
    positions = _positions(x, size, stride, storage_offset or 0)
    return torch.index_put(x.reshape(-1), (positions,), source.to(x.dtype).reshape(-1)).reshape(x.shape)


def _has_layout(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether nothing changes but the strides of axes of one element, as where a mean keeps its axes."""
    axes = zip(size, x.stride(), stride, strict=False)
    return list(x.size()) == list(size) and all(have == want for length, have, want in axes if length != 1)


def _is_compact(x: Tensor) -> bool:
    return x.is_contiguous() and x.storage_offset() == 0


def _positions(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Where in the flat tensor each element lies; one axis."""
    positions = torch.full((1,) * len(size), offset, dtype=torch.long, device=x.device)
    for axis, (length, step) in enumerate(zip(size, stride, strict=True)):
        along = [1] * len(size)
        along[axis] = length
        positions = positions + (torch.arange(length, device=x.device) * step).reshape(along)
    return positions.reshape(-1)


DECOMPOSITIONS = {
    aten.as_strided.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}
