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
    if not _is_compact(x):
        return NotImplemented
    return x.reshape(-1)[_positions(x, size, stride, storage_offset or 0)].reshape(size)


def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    if not _is_compact(x):
        return NotImplemented
    positions = _positions(x, size, stride, storage_offset or 0)
    return torch.index_put(x.reshape(-1), (positions,), source.to(x.dtype).reshape(-1)).reshape(x.shape)


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
