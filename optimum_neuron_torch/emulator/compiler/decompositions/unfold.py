"""`unfold`, overlapping windows along an axis, which torch-mlir does not know, as a selection of rows."""

from __future__ import annotations

import torch
from torch import Tensor


aten = torch.ops.aten


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if x.dim() == 0:
        return x.expand(size)
    dim = dim % x.dim()
    count = (x.size(dim) - size) // step + 1
    first = torch.arange(count, device=x.device).unsqueeze(1) * step
    index = (first + torch.arange(size, device=x.device)).flatten()
    return x.index_select(dim, index).unflatten(dim, (count, size)).movedim(dim + 1, -1)


DECOMPOSITIONS = {aten.unfold.default: _unfold}
