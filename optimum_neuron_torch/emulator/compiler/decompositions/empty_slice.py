"""A slice of nothing as new memory: torch-mlir takes the bounds of an empty slice for those of the whole axis."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    kept = len(range(*slice(start, end, step).indices(x.size(dim))))
    if kept:
        return NotImplemented
    size = list(x.shape)
    size[dim] = 0
    return aten.full.default(size, 0, dtype=x.dtype, device=x.device)


DECOMPOSITIONS = {aten.slice.Tensor: _slice}
